/* Owns the table of macros that matter in answers and a tolerant reader of LaTeX: what is not
 * closed ends at the end, what is closed too often is skipped. */
#include "reward/detex.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"

enum { MAX_DEPTH = 100, MAX_OUT = 4 << 20 };

struct macro {
    const char *name, *text;
};

/* Sorted by name (in the order of strcmp). Letters that the symbolic comparison reads are spelt
 * out: pi, inf, *, U. */
static const struct macro symbols[] = {
    {"AA", "Å"},
    {"Delta", "Δ"},
    {"Gamma", "Γ"},
    {"L", "Ł"},
    {"Lambda", "Λ"},
    {"Leftarrow", "⇐"},
    {"Leftrightarrow", "⇔"},
    {"O", "Ø"},
    {"Omega", "Ω"},
    {"Phi", "Φ"},
    {"Pi", "Π"},
    {"Psi", "Ψ"},
    {"Rightarrow", "⇒"},
    {"Sigma", "Σ"},
    {"Theta", "Θ"},
    {"Upsilon", "Υ"},
    {"Vert", "‖"},
    {"Xi", "Ξ"},
    {"ae", "æ"},
    {"aleph", "ℵ"},
    {"alpha", "α"},
    {"angle", "∠"},
    {"approx", "≈"},
    {"arccos", "arccos"},
    {"arcsin", "arcsin"},
    {"arctan", "arctan"},
    {"ast", "∗"},
    {"backslash", "\\"},
    {"because", "∵"},
    {"beta", "β"},
    {"bigcap", "⋂"},
    {"bigcup", "⋃"},
    {"bullet", "∙"},
    {"cap", "∩"},
    {"cdot", "*"},
    {"cdots", "⋯"},
    {"chi", "χ"},
    {"circ", "∘"},
    {"cong", "≅"},
    {"cos", "cos"},
    {"cosh", "cosh"},
    {"cot", "cot"},
    {"coth", "coth"},
    {"csc", "csc"},
    {"cup", "U"},
    {"dagger", "†"},
    {"ddots", "⋱"},
    {"delta", "δ"},
    {"diamond", "♢"},
    {"div", "÷"},
    {"dots", "…"},
    {"downarrow", "↓"},
    {"ell", "ℓ"},
    {"emptyset", "∅"},
    {"epsilon", "ϵ"},
    {"equiv", "≡"},
    {"eta", "η"},
    {"exists", "∃"},
    {"exp", "exp"},
    {"forall", "∀"},
    {"gamma", "γ"},
    {"ge", "≥"},
    {"geq", "≥"},
    {"geqslant", "⩾"},
    {"gg", "≫"},
    {"hbar", "ħ"},
    {"i", "ı"},
    {"in", "∈"},
    {"inf", "inf"},
    {"infty", "inf"},
    {"int", "∫"},
    {"iota", "ι"},
    {"j", "ȷ"},
    {"kappa", "κ"},
    {"l", "ł"},
    {"lambda", "λ"},
    {"langle", "⟨"},
    {"lbrace", "{"},
    {"lceil", "⌈"},
    {"ldots", "…"},
    {"le", "≤"},
    {"leftarrow", "←"},
    {"leftrightarrow", "↔"},
    {"leq", "≤"},
    {"leqslant", "⩽"},
    {"lfloor", "⌊"},
    {"lim", "lim"},
    {"ll", "≪"},
    {"ln", "ln"},
    {"log", "log"},
    {"lvert", "|"},
    {"mapsto", "↦"},
    {"max", "max"},
    {"mho", "℧"},
    {"mid", "|"},
    {"min", "min"},
    {"mp", "∓"},
    {"mu", "μ"},
    {"nabla", "∇"},
    {"neq", "≠"},
    {"ni", "∋"},
    {"notin", "∉"},
    {"nu", "ν"},
    {"o", "ø"},
    {"odot", "⊙"},
    {"oint", "∮"},
    {"omega", "ω"},
    {"oplus", "⊕"},
    {"otimes", "⊗"},
    {"parallel", "∥"},
    {"partial", "∂"},
    {"perp", "⊥"},
    {"phi", "ϕ"},
    {"pi", "pi"},
    {"pm", "±"},
    {"prime", "'"},
    {"prod", "∏"},
    {"propto", "∝"},
    {"psi", "ψ"},
    {"qquad", "    "},
    {"quad", "  "},
    {"rangle", "⟩"},
    {"rbrace", "}"},
    {"rceil", "⌉"},
    {"rfloor", "⌋"},
    {"rho", "ρ"},
    {"rightarrow", "→"},
    {"rvert", "|"},
    {"sec", "sec"},
    {"setminus", "∖"},
    {"sigma", "σ"},
    {"sim", "∼"},
    {"simeq", "≃"},
    {"sin", "sin"},
    {"sinh", "sinh"},
    {"smallsetminus", "∖"},
    {"square", "□"},
    {"ss", "ß"},
    {"star", "⋆"},
    {"subset", "⊂"},
    {"subseteq", "⊆"},
    {"sum", "∑"},
    {"sup", "sup"},
    {"supset", "⊃"},
    {"supseteq", "⊇"},
    {"tan", "tan"},
    {"tanh", "tanh"},
    {"tau", "τ"},
    {"textdegree", "°"},
    {"therefore", "∴"},
    {"theta", "θ"},
    {"times", "*"},
    {"to", "→"},
    {"uparrow", "↑"},
    {"upsilon", "υ"},
    {"varepsilon", "ε"},
    {"varnothing", "∅"},
    {"varphi", "φ"},
    {"varrho", "ϱ"},
    {"varsigma", "ς"},
    {"vartheta", "ϑ"},
    {"vdots", "⋮"},
    {"vee", "∨"},
    {"vert", "|"},
    {"wedge", "∧"},
    {"wp", "℘"},
    {"xi", "ξ"},
    {"zeta", "ζ"},
};

/* Macros whose first argument is not text. */
static const char *const swallow[] = {"color", "hspace",    "input", "label",
                                      "mbox",  "textcolor", "vspace"};

/* Marks that follow each character of the argument. */
static const struct macro accents[] = {
    {"acute", "\u0301"}, {"bar", "\u0305"}, {"breve", "\u0306"}, {"check", "\u030c"},
    {"ddot", "\u0308"},  {"dot", "\u0307"}, {"grave", "\u0300"}, {"hat", "\u0302"},
    {"tilde", "\u0303"}, {"vec", "\u20d7"}, {"'", "\u0301"},     {"`", "\u0300"},
    {"\"", "\u0308"},    {"^", "\u0302"},   {"~", "\u0303"},     {"=", "\u0304"},
    {".", "\u0307"},
};

/* Mathematical alphabets: code points of A and a. */
static const struct {
    const char *name;
    uint32_t upper, lower;
} styles[] = {
    {"mathbf", 0x1d400, 0x1d41a},  {"mathit", 0x1d434, 0x1d44e},   {"mathcal", 0x1d49c, 0x1d4b6},
    {"mathscr", 0x1d49c, 0x1d4b6}, {"mathfrak", 0x1d504, 0x1d51e}, {"mathbb", 0x1d538, 0x1d552},
    {"mathsf", 0x1d5a0, 0x1d5ba},  {"mathtt", 0x1d670, 0x1d68a},
};

static const char *const matrices[] = {"array",       "pmatrix",      "bmatrix",
                                       "smallmatrix", "psmallmatrix", "bsmallmatrix"};

struct reader {
    const char *at;
    int depth, failed;
};

enum stop { STOP_END, STOP_BRACE, STOP_BRACKET, STOP_CELL };

static void read_text(struct reader *r, struct buf *out, enum stop stop);

static int is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static int is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static void skip_blanks(struct reader *r)
{
    while (is_blank(*r->at)) {
        r->at++;
    }
}

static size_t char_len(const char *s)
{
    size_t n = 1;
    while (((unsigned char)s[n] & 0xc0) == 0x80 && n < 4) {
        n++;
    }
    return n;
}

static void put_code(struct buf *out, uint32_t c)
{
    char u[4] = {(char)(0xf0 | c >> 18), (char)(0x80 | (c >> 12 & 63)),
                 (char)(0x80 | (c >> 6 & 63)), (char)(0x80 | (c & 63))};
    buf_add(out, u, 4);
}

static int listed(const char *const *list, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++) {
        if (strcmp(list[i], name) == 0) {
            return 1;
        }
    }
    return 0;
}

#define LISTED(list, name) listed(list, sizeof list / sizeof *list, name)

static void read_macro(struct reader *r, struct buf *out);

/* One argument: a group, a macro or a character. */
static void read_arg(struct reader *r, struct buf *out)
{
    skip_blanks(r);
    if (*r->at == '{') {
        r->at++;
        read_text(r, out, STOP_BRACE);
    } else if (*r->at == '\\') {
        read_macro(r, out);
    } else if (*r->at && *r->at != '}') {
        size_t n = char_len(r->at);
        buf_add(out, r->at, n);
        r->at += n;
    }
}

static void drop_arg(struct reader *r)
{
    struct buf none;
    buf_init(&none, MAX_OUT);
    read_arg(r, &none);
    buf_fini(&none);
}

/* [...] after a macro, thrown away. */
static void drop_option(struct reader *r)
{
    const char *save = r->at;
    struct buf none;

    skip_blanks(r);
    if (*r->at != '[') {
        r->at = save;
        return;
    }
    r->at++;
    buf_init(&none, MAX_OUT);
    read_text(r, &none, STOP_BRACKET);
    buf_fini(&none);
}

static void put_accent(struct reader *r, struct buf *out, const char *mark)
{
    struct buf arg;

    buf_init(&arg, MAX_OUT);
    read_arg(r, &arg);
    for (const char *p = arg.data; *p;) {
        size_t n = char_len(p);
        buf_add(out, p, n);
        buf_str(out, mark);
        p += n;
    }
    buf_fini(&arg);
}

static void put_style(struct reader *r, struct buf *out, uint32_t upper, uint32_t lower)
{
    static const char holes[] = "CHNPQRZ"; /* these double-struck letters are older than the rest */
    static const char *const old[] = {"ℂ", "ℍ", "ℕ", "ℙ", "ℚ", "ℝ", "ℤ"};
    struct buf arg;

    buf_init(&arg, MAX_OUT);
    read_arg(r, &arg);
    for (const char *p = arg.data; *p; p++) {
        const char *hole = strchr(holes, *p);
        if (hole && upper == 0x1d538) {
            buf_str(out, old[hole - holes]);
        } else if (*p >= 'A' && *p <= 'Z') {
            put_code(out, upper + (uint32_t)(*p - 'A'));
        } else if (*p >= 'a' && *p <= 'z') {
            put_code(out, lower + (uint32_t)(*p - 'a'));
        } else {
            buf_char(out, *p);
        }
    }
    buf_fini(&arg);
}

static int compare_macro(const void *key, const void *item)
{
    return strcmp(key, ((const struct macro *)item)->name);
}

static void trim_into(struct buf *out, const struct buf *cell)
{
    const char *p = cell->data, *end = cell->data + cell->len;
    while (p < end && is_blank(*p)) {
        p++;
    }
    while (end > p && is_blank(end[-1])) {
        end--;
    }
    buf_add(out, p, (size_t)(end - p));
}

/* "[ a b; c d ]" from the cells up to \end. */
static void read_matrix(struct reader *r, struct buf *out)
{
    struct buf cell;

    buf_init(&cell, MAX_OUT);
    buf_str(out, "[ ");
    for (;;) {
        buf_clear(&cell);
        read_text(r, &cell, STOP_CELL);
        trim_into(out, &cell);
        if (*r->at == '&') {
            r->at++;
            buf_str(out, " ");
        } else if (r->at[0] == '\\' && r->at[1] == '\\') {
            r->at += 2;
            drop_option(r);
            buf_str(out, "; ");
        } else {
            break;
        }
    }
    buf_str(out, " ]");
    buf_fini(&cell);
}

static int at_end_of_env(const char *s)
{
    return strncmp(s, "\\end", 4) == 0 && !is_letter(s[4]);
}

static void read_env(struct reader *r, struct buf *out)
{
    struct buf name;

    buf_init(&name, MAX_OUT);
    read_arg(r, &name);
    if (strcmp(name.data, "array") == 0 || strcmp(name.data, "tabular") == 0) {
        drop_option(r);
        drop_arg(r);
    }
    if (LISTED(matrices, name.data)) {
        read_matrix(r, out);
        if (at_end_of_env(r->at)) {
            r->at += 4;
            drop_arg(r);
        }
    }
    buf_fini(&name);
}

static void read_named(struct reader *r, struct buf *out, const char *name)
{
    const struct macro *m;

    if (strcmp(name, "frac") == 0) {
        read_arg(r, out);
        buf_str(out, "/");
        read_arg(r, out);
        return;
    }
    if (strcmp(name, "sqrt") == 0) {
        drop_option(r);
        buf_str(out, "sqrt(");
        read_arg(r, out);
        buf_str(out, ")");
        return;
    }
    if (strcmp(name, "begin") == 0) {
        read_env(r, out);
        return;
    }
    if (strcmp(name, "end") == 0 || LISTED(swallow, name)) {
        drop_arg(r);
        return;
    }
    for (size_t i = 0; i < sizeof styles / sizeof *styles; i++) {
        if (strcmp(styles[i].name, name) == 0) {
            put_style(r, out, styles[i].upper, styles[i].lower);
            return;
        }
    }
    for (size_t i = 0; i < sizeof accents / sizeof *accents; i++) {
        if (strcmp(accents[i].name, name) == 0) {
            put_accent(r, out, accents[i].text);
            return;
        }
    }
    m = bsearch(name, symbols, sizeof symbols / sizeof *symbols, sizeof *symbols, compare_macro);
    if (m) {
        buf_str(out, m->text);
    }
}

/* A macro at r->at, which is a backslash. */
static void read_macro(struct reader *r, struct buf *out)
{
    char name[32], c;
    size_t n = 0;

    if (++r->depth > MAX_DEPTH) {
        r->failed = 1;
    }
    r->at++;
    c = *r->at;
    if (r->failed || !c) {
        r->depth--;
        return;
    }
    if (is_letter(c)) {
        while (is_letter(*r->at)) {
            if (n < sizeof name - 1) {
                name[n++] = *r->at;
            }
            r->at++;
        }
        name[n] = 0;
        skip_blanks(r);
        read_named(r, out, name);
    } else if (c == '\\') {
        r->at++;
        drop_option(r);
        buf_char(out, '\n');
    } else if (strchr("'`\"^~=.", c)) {
        r->at++;
        name[0] = c;
        name[1] = 0;
        read_named(r, out, name);
    } else {
        r->at += char_len(r->at);
        if (strchr("{}%$&#_", c)) {
            buf_char(out, c);
        } else if (strchr(",;: \t\n", c)) {
            buf_char(out, ' ');
        }
    }
    r->depth--;
}

/* Characters that stand for others in running text; the number of bytes read, 0 for none. */
static size_t read_ligature(const char *s, struct buf *out)
{
    static const struct macro table[] = {{"---", "—"},    {"--", "–"},  {"``", "“"},
                                         {"''", "”"},     {"!`", "¡"},  {"?`", "¿"},
                                         {"~", "\u00a0"}, {"&", "   "}, {"$", ""}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        size_t n = strlen(table[i].name);
        if (strncmp(s, table[i].name, n) == 0) {
            buf_str(out, table[i].text);
            return n;
        }
    }
    return 0;
}

static void read_text(struct reader *r, struct buf *out, enum stop stop)
{
    if (++r->depth > MAX_DEPTH) {
        r->failed = 1;
    }
    while (*r->at && !r->failed && !out->failed) {
        char c = *r->at;
        size_t n;
        if (stop == STOP_CELL && (c == '&' || (c == '\\' && r->at[1] == '\\'))) {
            break;
        }
        if (stop == STOP_CELL && at_end_of_env(r->at)) {
            break;
        }
        if ((stop == STOP_BRACE && c == '}') || (stop == STOP_BRACKET && c == ']')) {
            r->at++;
            break;
        }
        if (c == '{') {
            r->at++;
            read_text(r, out, STOP_BRACE);
        } else if (c == '}') {
            r->at++;
        } else if (c == '\\') {
            read_macro(r, out);
        } else if ((n = read_ligature(r->at, out)) > 0) {
            r->at += n;
        } else {
            buf_char(out, c);
            r->at++;
        }
    }
    r->depth--;
}

char *detex_text(const char *s, struct arena *a)
{
    struct reader r = {.at = s};
    struct buf out;
    char *text = NULL;

    buf_init(&out, MAX_OUT);
    read_text(&r, &out, STOP_END);
    if (!r.failed && buf_status(&out) == 0) {
        text = arena_strndup(a, out.data, out.len);
    }
    buf_fini(&out);
    return text;
}
