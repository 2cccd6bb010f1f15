"""Pairs of answers whose equality is known by construction, and rewritings of labels.

pairs(n, seed) gives dicts {kind, truth, given, equal}: the same for the same seed. Each kind makes a value
first and then writes it in two ways (equal), or writes it and another value (not equal); what is equal is never
decided by a program that grades.
"""
import random
import re
from fractions import Fraction

KINDS = {}


def kind(fn):
    KINDS[fn.__name__] = fn
    return fn


# ---- numbers ----

def frac(q, r, style=None):
    """A rational number as text."""
    style = style if style is not None else r.randrange(6)
    sign, a, b = ("-" if q < 0 else ""), abs(q.numerator), q.denominator
    if b == 1:
        return sign + str(a)
    if style == 0:
        return f"{sign}\\frac{{{a}}}{{{b}}}"
    if style == 1:
        return f"{sign}{a}/{b}"
    if style == 2:
        return f"{sign}\\dfrac{{{a}}}{{{b}}}"
    if style == 3:
        k = r.choice([2, 3, 5])
        return f"{sign}\\frac{{{a * k}}}{{{b * k}}}"
    if style == 4:
        return f"\\frac{{{sign}{a}}}{{{b}}}"
    return f"{sign}\\tfrac{{{a}}}{{{b}}}"


def other(q, r):
    """A rational number near q that is not q."""
    step = r.choice([1, -1, 2, Fraction(1, 2), Fraction(1, 10), -Fraction(1, 3)])
    way = r.randrange(4)
    if way == 0 and q != 0:
        return -q
    if way == 1 and q not in (0, 1, -1):
        return 1 / q
    if way == 2 and q != 0:
        return q * r.choice([10, 2, Fraction(1, 10)])
    return q + step


def thousands(n, r, sep=","):
    return f"{n:,}".replace(",", sep)


def rational(r, big=9):
    while True:
        q = Fraction(r.randint(-big, big), r.randint(1, big))
        if q != 0:
            return q


@kind
def integers(r, eq):
    n = r.choice([r.randint(-20, 20), r.randint(0, 999), r.randint(1000, 99999999)])
    m = n if eq else n + r.choice([1, -1, 10, -7, 100])
    styles = [str(m), f"${m}$", f"{m}.0", f" {m} ", f"\\text{{{m}}}", f"{m}.", f"\\left({m}\\right)", f"{{{m}}}",
              f"{m}.00"]
    if m >= 1000:
        styles += [thousands(m, r), thousands(m, r, ",\\!"), thousands(m, r, "{,}"), thousands(m, r, "\\,")] * 2
    if m > 3:
        styles += [f"{m - 3}+3", f"{2 * m}/2"]
    return str(n), r.choice(styles)


@kind
def powers(r, eq):
    b, e = r.randint(2, 9), r.randint(2, 12)
    n = b ** e
    m = (b, e) if eq else r.choice([(b, e + 1), (b + 1, e), (e + 13, b)])
    given = r.choice([f"{m[0]}^{{{m[1]}}}", f"{m[0]}^{m[1]}", f"{m[0]}**{m[1]}", f"{m[0]} \\cdot {m[0]}^{{{m[1] - 1}}}",
                      f"{m[0]}^{{{m[1] - 1}}} \\times {m[0]}", str(m[0] ** m[1])])
    return r.choice([str(n), f"{b}^{{{e}}}"]), given


@kind
def fractions(r, eq):
    q = rational(r, r.choice([9, 40, 999]))
    return frac(q, r, 0), frac(q if eq else other(q, r), r)


@kind
def decimals(r, eq):
    d = r.randint(1, 5)
    q = Fraction(r.randint(-99999, 99999), 10 ** d)
    p = q if eq else other(q, r)
    if eq and r.random() < 0.5:
        return frac(q, r), dec(q, r)
    return dec(q, r), (dec(p, r) if terminates(p) and r.random() < 0.5 else frac(p, r))


def terminates(q):
    d = q.denominator
    for k in (2, 5):
        while d % k == 0:
            d //= k
    return d == 1


def dec(q, r, pad=True):
    """A decimal; a fraction where there is no end to it."""
    if not terminates(q):
        return frac(q, r, 1)
    sign, q, n = ("-" if q < 0 else ""), abs(q), 0
    while (q * 10 ** n).denominator != 1:
        n += 1
    digits = str(q.numerator * 10 ** n // q.denominator).rjust(n + 1, "0")
    whole, part = (digits[:-n], digits[-n:]) if n else (digits, "")
    if pad and r.random() < 0.3:
        part += "0" * r.randint(1, 2)
    if whole == "0" and part and r.random() < 0.3:
        whole = ""
    return sign + whole + ("." + part if part else "")


@kind
def repeating(r, eq):
    a, b = r.randint(0, 9), r.choice(["3", "6", "7", "12", "45", "142857", "09", "1"])
    lead = r.choice(["", "1", "05"])
    q = Fraction(int((lead or "0") + b) - int(lead or "0"), 10 ** len(lead) * (10 ** len(b) - 1)) + a
    p = q if eq else other(q, r)
    return frac(p, r), r.choice([f"{a}.{lead}\\overline{{{b}}}"])


@kind
def mixed(r, eq):
    w, b = r.randint(1, 30), r.randint(2, 12)
    a = r.randint(1, b - 1)
    sign = r.choice([1, 1, -1])
    q = sign * (w + Fraction(a, b))
    p = q if eq else r.choice([other(q, r), sign * w * Fraction(a, b) if w * Fraction(a, b) != w + Fraction(a, b)
                               else q + 1])
    s = "-" if sign < 0 else ""
    text = r.choice([f"{s}{w}\\frac{{{a}}}{{{b}}}", f"{s}{w} {a}/{b}", f"{s}{w}\\tfrac{{{a}}}{{{b}}}",
                     f"{s}{w} \\frac{{{a}}}{{{b}}}"])
    return (text, frac(p, r)) if r.random() < 0.5 else (frac(p, r), text)


@kind
def scientific(r, eq):
    m, e = Fraction(r.randint(11, 999), 100), r.randint(-12, 15)
    f = e if eq else e + r.choice([1, -1, 2])
    one = f"{dec(m, r, False)}e{e}"
    two = r.choice([f"{dec(m, r, False)} \\times 10^{{{f}}}", f"{dec(m, r, False)} \\cdot 10^{{{f}}}",
                    f"{dec(m * 10, r, False)} \\times 10^{{{f - 1}}}", f"{dec(m, r, False)}*10^({f})"])
    return one, two


@kind
def percent(r, eq):
    q = Fraction(r.randint(1, 995), r.choice([1, 1, 10]))
    p = q if eq else q + r.choice([1, 10, Fraction(1, 2)])
    way = r.randrange(4)
    if way == 0:
        return f"{dec(q, r, False)}\\%", dec(p, r, False)
    if way == 1:
        return f"{dec(q, r, False)}\\%", dec(p / 100, r, False)
    if way == 2:
        return dec(q / 100, r, False), f"{dec(p, r, False)}\\%"
    return f"{dec(q, r, False)}\\%", r.choice([f"{dec(p, r, False)}%", f"{dec(p, r, False)} percent",
                                              f"{dec(p, r, False)} \\%"])


@kind
def money(r, eq):
    q = Fraction(r.randint(100, 9999999), 100)
    p = q if eq else q + r.choice([1, Fraction(1, 100), 10])
    whole, part = divmod(p.numerator * 100 // p.denominator, 100)
    text = f"{whole:,}.{part:02d}"
    given = r.choice([f"\\${text}", f"\\$ {whole}.{part:02d}", f"{whole}.{part:02d} \\text{{ dollars}}",
                      f"{whole}.{part:02d}", f"{whole}.{part:02d} dollars"])
    return f"\\${q.numerator * 100 // q.denominator / 100:.2f}", given


UNITS = [("cm", "m", 100), ("mm", "cm", 10), ("g", "kg", 1000), ("minutes", "hours", 60), ("inches", "feet", 12),
         ("meters", "kilometers", 1000), ("seconds", "minutes", 60), ("feet", "yards", 3), ("cents", "dollars", 100)]


@kind
def units(r, eq):
    small, large, k = r.choice(UNITS)
    q = Fraction(r.randint(1, 400), r.choice([1, 1, 2]))
    p = q if eq else other(q, r)
    way = r.randrange(4)
    wrap = r.choice(["{} \\text{{ {}}}", "{}\\text{{ {}}}", "{} {}", "{}\\,\\text{{{}}}"]) if len(small) > 1 else \
        "{} \\text{{ {}}}"
    if way == 0:
        return wrap.format(dec(q, r, False), small), dec(p, r, False)
    if way == 1:
        return dec(q, r, False), wrap.format(dec(p, r, False), small)
    if way == 2:
        return wrap.format(dec(q, r, False), small), f"{dec(p, r, False)}\\text{{ {small}}}"
    return wrap.format(frac(q, r, 1), small), f"{frac(p / k, r)} \\text{{ {large}}}"


@kind
def areas(r, eq):
    n = r.randint(2, 5000)
    m = n if eq else n + r.randint(1, 9)
    u = r.choice([("cm", "centimeters"), ("m", "meters"), ("feet", "feet")])
    power = r.choice([2, 3])
    word = "square" if power == 2 else "cubic"
    forms = [f"{m} \\text{{ {word} {u[1]}}}", f"{m}\\text{{ {u[0]}}}^{power}", str(m), f"{m}\\mbox{{ {u[0]}}}^{{{power}}}"]
    return f"{n} \\text{{ {u[0]}}}^{power}", r.choice(forms)


@kind
def degrees(r, eq):
    n = r.randint(1, 360)
    m = n if eq else n + r.choice([1, -1, 90])
    forms = [f"{m}", f"{m}^{{\\circ}}", f"{m}^\\circ", f"{m} \\text{{ degrees}}", f"{m}°", f"{m} degrees"]
    return f"{n}^\\circ", r.choice(forms)


@kind
def times(r, eq):
    h, m, half = r.randint(1, 12), r.randint(0, 59), r.choice(["a", "p"])
    if eq:
        h2, m2, half2 = h, m, half
    else:
        h2, m2, half2 = r.choice([(h % 12 + 1, m, half), (h, (m + 5) % 60, half), (h, m, "p" if half == "a" else "a")])
    forms = [f"{h2}:{m2:02d} \\text{{ {half2}.m.}}", f"{h2}:{m2:02d} {half2.upper()}M", f"{h2}:{m2:02d} {half2}.m.",
             f"{h2}:{m2:02d}\\text{{ {half2}m}}"]
    return f"{h}:{m:02d} \\text{{ {half}.m.}}", r.choice(forms)


@kind
def rounded(r, eq):
    """A decimal for an irrational or endless value: equal from six digits on when correctly rounded."""
    from mpmath import mp, mpf, nstr, pi, sqrt, e
    mp.dps = 60
    text, v = r.choice([("\\pi", pi + 0), ("\\sqrt{2}", sqrt(2)), ("e", e + 0), ("\\frac{1}{3}", mpf(1) / 3),
                        ("\\sqrt{7}", sqrt(7)), ("\\frac{22}{7}", mpf(22) / 7), ("2\\pi", 2 * pi), ("\\frac{5}{6}", mpf(5) / 6)])
    digits = r.randint(7, 12) if eq or r.random() < 0.5 else r.randint(2, 4)
    k = digits - 1 if v >= 1 else digits
    n = int(mp.floor(v * mpf(10) ** k + mpf(1) / 2))
    if not eq and digits > 4:
        n += r.choice([2, -2, 7])
    s = str(n).rjust(k + 1, "0")
    return text, f"{s[:-k]}.{s[-k:]}"


# ---- roots, pi, powers, complex ----

@kind
def radicals(r, eq):
    a, b, c = r.randint(2, 9), r.choice([2, 3, 5, 6, 7, 10, 11, 13]), r.randint(2, 9)
    x = f"{a}\\sqrt{{{b}}}"
    if eq:
        y = r.choice([f"\\sqrt{{{a * a * b}}}", f"{a}\\sqrt {b}" if b < 10 else x + " ", f"{a} sqrt({b})",
                      f"\\frac{{{a * b}}}{{\\sqrt{{{b}}}}}", f"{a * c}\\sqrt{{{b}}}/{c}", f"{a} \\cdot {b}^{{1/2}}",
                      f"{a} \\times \\sqrt{{{b}}}", f"\\sqrt{{{a}}}\\cdot\\sqrt{{{a * b}}}", f"{a}√{b}"])
    else:
        y = r.choice([f"\\sqrt{{{a * b}}}", f"{a + 1}\\sqrt{{{b}}}", f"{a}\\sqrt{{{b + 1}}}", f"{a}{b}", f"-{x}",
                      f"\\sqrt{{{a * a * b + 1}}}", f"\\frac{{{a}}}{{\\sqrt{{{b}}}}}"])
    return x, y


@kind
def surds(r, eq):
    a, b = r.randint(1, 9), r.choice([2, 3, 5, 7])
    c = r.randint(2, 6)
    if eq:
        x, y = r.choice([
            (f"\\frac{{1}}{{{a}+\\sqrt{{{b}}}}}", f"\\frac{{{a}-\\sqrt{{{b}}}}}{{{a * a - b}}}"),
            (f"{a}+{c}\\sqrt{{{b}}}", f"{c}\\sqrt{{{b}}} + {a}"),
            (f"({a}+\\sqrt{{{b}}})^2", f"{a * a + b}+{2 * a}\\sqrt{{{b}}}"),
            (f"\\sqrt{{{a * a + b}+{2 * a}\\sqrt{{{b}}}}}", f"{a}+\\sqrt{{{b}}}"),
            (f"\\sqrt[3]{{{c ** 3 * b}}}", f"{c}\\sqrt[3]{{{b}}}"),
            (f"\\sqrt[3]{{-{c ** 3}}}", f"-{c}"),
            (f"\\frac{{{a}+\\sqrt{{{b}}}}}{{{c}}}", f"\\frac{{{a}}}{{{c}}}+\\frac{{\\sqrt{{{b}}}}}{{{c}}}")])
    else:
        x, y = r.choice([
            (f"\\frac{{1}}{{{a}+\\sqrt{{{b}}}}}", f"\\frac{{{a}+\\sqrt{{{b}}}}}{{{abs(a * a - b)}}}"),
            (f"{a}+{c}\\sqrt{{{b}}}", f"{a}-{c}\\sqrt{{{b}}}"),
            (f"({a}+\\sqrt{{{b}}})^2", f"{a * a + b}"),
            (f"\\sqrt[3]{{{c ** 3 * b}}}", f"{c}\\sqrt{{{b}}}"),
            (f"\\sqrt{{{a}}}+\\sqrt{{{b}}}", f"\\sqrt{{{a + b}}}"),
            (f"\\frac{{{a}+\\sqrt{{{b}}}}}{{{c}}}", f"{a}+\\frac{{\\sqrt{{{b}}}}}{{{c}}}")])
    return x, y


@kind
def pis(r, eq):
    q = abs(rational(r, 12))
    p = q if eq else abs(other(q, r))
    if p == q and not eq:
        p = q + 1
    a, b = p.numerator, p.denominator
    over = f"\\frac{{{a}\\pi}}{{{b}}}" if b > 1 else f"{a}\\pi"
    y = r.choice([over, f"\\frac{{{a}}}{{{b}}}\\pi", f"{a}\\pi/{b}", f"{a}*pi/{b}", f"{a}π/{b}",
                  f"\\pi \\cdot \\frac{{{a}}}{{{b}}}"])
    a, b = q.numerator, q.denominator
    return f"\\frac{{{a} \\pi}}{{{b}}}", y


@kind
def complexes(r, eq):
    a, b = r.randint(-9, 9), r.choice([-1, 1]) * r.randint(2, 9)
    x = f"{a}{b:+d}i"
    if eq:
        y = r.choice([f"{b}i{a:+d}", f"{a} {'+' if b > 0 else '-'} {abs(b)}i", f"{b}i + ({a})", f"i({b}{-a:+d}i)",
                      f"\\frac{{{2 * a}{2 * b:+d}i}}{{2}}"])
    else:
        y = r.choice([f"{a}{-b:+d}i", f"{a + 1}{b:+d}i", f"{b}{a:+d}i" if a != b else f"{a}", f"{a}{b + (1 if b != -1 else 3):+d}i",
                      f"{a}{b:+d}"])
    return x, y


@kind
def logs(r, eq):
    a, k, b = r.randint(2, 9), r.randint(2, 5), r.randint(2, 7)
    if eq:
        return r.choice([(f"\\ln {a ** k}", f"{k}\\ln {a}"), (f"\\log_{{{a}}} {a ** k}", str(k)), (f"e^{{{k}}}", f"\\exp({k})"),
                         (f"\\ln {a} + \\ln {b}", f"\\ln({a * b})"), (f"e^{{\\ln {a}}}", str(a)),
                         (f"\\frac{{\\ln {a}}}{{\\ln {b}}}", f"\\log_{{{b}}} {a}"), (f"\\ln\\frac{{{a}}}{{{b}}}", f"\\ln {a}-\\ln {b}")])
    return r.choice([(f"\\ln {a ** k}", f"{k + 1}\\ln {a}"), (f"\\log_{{{a}}} {a ** k}", str(k + 1)), (f"e^{{{k}}}", f"{k}e"),
                     (f"\\ln {a} + \\ln {b}", f"\\ln({a + b + a * b})"), (f"\\ln {a}", f"\\ln {a + 1}")])


@kind
def trig_values(r, eq):
    table = [("\\sin 30^\\circ", "\\frac{1}{2}"), ("\\cos 60^\\circ", "0.5"), ("\\tan 45^\\circ", "1"),
             ("\\sin\\frac{\\pi}{3}", "\\frac{\\sqrt{3}}{2}"), ("\\cos\\frac{\\pi}{4}", "\\frac{\\sqrt{2}}{2}"),
             ("\\arctan 1", "\\frac{\\pi}{4}"), ("\\sin^{-1}(1)", "\\frac{\\pi}{2}"), ("\\cos \\pi", "-1"),
             ("\\tan\\frac{\\pi}{3}", "\\sqrt{3}"), ("\\sin 15^\\circ", "\\frac{\\sqrt{6}-\\sqrt{2}}{4}"),
             ("\\cos 36^\\circ", "\\frac{1+\\sqrt{5}}{4}"), ("\\sec 60^\\circ", "2"), ("\\arccos 0", "\\frac{\\pi}{2}")]
    i = r.randrange(len(table))
    x, y = table[i]
    if not eq:
        vals = sorted({v for _, v in table if v not in (y, "0.5", "\\frac{1}{2}")} - {y})
        y = r.choice(vals) if y not in ("0.5", "\\frac{1}{2}") else r.choice([v for v in vals])
    return (x, y) if r.random() < 0.5 else (y, x)


@kind
def counting(r, eq):
    n = r.randint(3, 12)
    k = r.randint(1, n - 1)
    from math import comb, factorial
    if r.random() < 0.5:
        v = comb(n, k)
        return f"\\binom{{{n}}}{{{k}}}", str(v if eq else v + 1)
    v = factorial(n)
    return f"{n}!", r.choice([str(v if eq else v // 2), f"{n} \\cdot {n - 1 if eq else n}!"])


# ---- formulas ----

def poly(c, x, r, space=""):
    """A polynomial from coefficients, lowest first."""
    out = ""
    for i in range(len(c) - 1, -1, -1):
        if c[i] == 0:
            continue
        k = abs(c[i])
        sign = "-" if c[i] < 0 else ("+" if out else "")
        power = "" if i == 0 else x if i == 1 else r.choice([f"{x}^{i}", f"{x}^{{{i}}}"])
        out += f"{space if out else ''}{sign}{space if out else ''}{'' if k == 1 and i else k}{power}"
    return out or "0"


def times_poly(a, b):
    out = [0] * (len(a) + len(b) - 1)
    for i, p in enumerate(a):
        for k, q in enumerate(b):
            out[i + k] += p * q
    return out


@kind
def polynomials(r, eq):
    x = r.choice("xyzt")
    fs = [[r.choice([n for n in range(-7, 8) if n]), r.choice([1, 1, 2, -3])] for _ in range(r.randint(2, 3))]
    c = [1]
    for f in fs:
        c = times_poly(c, f)
    given = "".join(f"({poly(f, x, r)})" for f in fs) if r.random() < 0.6 else poly(c, x, r, " ")
    if not eq:
        i = r.randrange(len(c))
        d = list(c)
        d[i] += r.choice([1, -2, 5])
        return poly(d, x, r), given
    return poly(c, x, r), given


@kind
def rational_functions(r, eq):
    x = r.choice("xnk")
    a, b = r.randint(1, 9), r.randint(1, 9)
    if eq:
        return r.choice([(f"\\frac{{{x}^2-{a * a}}}{{{x}-{a}}}", f"{x}+{a}"),
                         (f"\\frac{{1}}{{{x}}}+\\frac{{{a}}}{{{b}}}", f"\\frac{{{b}+{a}{x}}}{{{b}{x}}}"),
                         (f"\\frac{{{x}({x}+1)}}{{2}}", f"\\frac{{{x}^2+{x}}}{{2}}"),
                         (f"\\frac{{{a}{x}+{b}}}{{{a * b}}}", f"\\frac{{{x}}}{{{b}}}+\\frac{{1}}{{{a}}}"),
                         (f"{a}({x}+{b})", f"{a}{x}+{a * b}")])
    return r.choice([(f"\\frac{{{x}^2-{a * a}}}{{{x}-{a}}}", f"{x}-{a}"),
                     (f"\\frac{{1}}{{{x}}}+\\frac{{{a}}}{{{b}}}", f"\\frac{{1+{a}}}{{{x}+{b}}}"),
                     (f"\\frac{{{x}({x}+1)}}{{2}}", f"\\frac{{{x}^2+1}}{{2}}"),
                     (f"{a}({x}+{b})", f"{a}{x}+{b + (a == 1)}")])


@kind
def identities(r, eq):
    x = r.choice(["x", "\\theta", "\\alpha"])
    y = r.choice(["a", "b", "n"])
    if eq:
        return r.choice([(f"\\sin 2{x}", f"2\\sin {x}\\cos {x}"), (f"1-\\sin^2 {x}", f"\\cos^2 {x}"), (f"\\tan {x}", f"\\frac{{\\sin {x}}}{{\\cos {x}}}"),
                         (f"\\cos 2{x}", f"2\\cos^2 {x} - 1"), (f"2^{{{y}+1}}", f"2 \\cdot 2^{y}"), (f"e^{{2{y}}}", f"(e^{y})^2"),
                         (f"\\sec^2 {x}", f"1+\\tan^2 {x}"), (f"4^{y}", f"2^{{2{y}}}"), (f"\\sin({x}+\\frac{{\\pi}}{{2}})", f"\\cos {x}"),
                         (f"\\binom{{{y}}}{{2}}", f"\\frac{{{y}({y}-1)}}{{2}}"), (f"{y} \\cdot ({y}-1)!", f"{y}!")])
    return r.choice([(f"\\sin 2{x}", f"2\\sin {x}"), (f"1-\\sin^2 {x}", f"\\cos {x}"), (f"\\tan {x}", f"\\frac{{\\cos {x}}}{{\\sin {x}}}"),
                     (f"\\cos 2{x}", f"1 - \\cos^2 {x}"), (f"2^{{{y}+1}}", f"2^{y}+1"), (f"e^{{2{y}}}", f"2e^{y}"), (f"4^{y}", f"2^{y}+2"),
                     (f"\\binom{{{y}}}{{2}}", f"\\frac{{{y}({y}+1)}}{{2}}"), (f"\\sqrt{{{y}^2}}", f"{y}")])


@kind
def letters(r, eq):
    a, b = r.sample("abcxyzmn", 2)
    k = r.randint(2, 9)
    if eq:
        return r.choice([(f"{k}{a}{b}", f"{k}{b}{a}"), (f"{a}+{b}", f"{b}+{a}"), (f"{a}^{k}{b}", f"{b}{a}^{{{k}}}"),
                         (f"\\frac{{{a}}}{{{b}}}", f"{a}/{b}"), (f"{a}_{{1}}+{b}_2", f"{b}_{{2}}+{a}_1"), (f"({a}+{b})^2", f"{a}^2+2{a}{b}+{b}^2")])
    return r.choice([(f"{k}{a}{b}", f"{k + 1}{a}{b}"), (f"{a}+{b}", f"{a}-{b}"), (f"{a}^{k}{b}", f"{a}{b}^{k}"), (f"\\frac{{{a}}}{{{b}}}", f"{b}/{a}"),
                     (f"{a}_1", f"{a}_2"), (f"({a}+{b})^2", f"{a}^2+{b}^2"), (a, b), (f"{a}", f"{k}")])


# ---- structures ----

def value(r):
    """A number and two texts of it."""
    q = rational(r, 12)
    return q, frac(q, r), (frac(q, r) if not terminates(q) or r.random() < 0.5 else dec(q, r, False))


@kind
def tuples(r, eq):
    n = r.randint(2, 4)
    vs = [value(r) for _ in range(n)]
    a, b = [v[1] for v in vs], [v[2] for v in vs]
    if not eq:
        way = r.randrange(4)
        i = r.randrange(n)
        if way == 0:
            b[i] = frac(other(vs[i][0], r), r)
        elif way == 1 and vs[0][0] != vs[1][0]:
            b[0], b[1] = b[1], b[0]
        elif way == 2:
            b = b + ["1"]
        else:
            b = b[:-1] if n > 2 else b + ["0"]
    op, cl = r.choice([("(", ")"), ("\\left(", "\\right)"), ("( ", " )")])
    return "(" + ", ".join(a) + ")", op + r.choice([",", ", ", " , "]).join(b) + cl


def interval(r, lo=None, hi=None):
    a = r.randint(-9, 5)
    b = a + r.randint(1, 9)
    return r.choice("(["), a, b, r.choice(")]")


@kind
def intervals(r, eq):
    o, a, b, c = interval(r)
    kind_ = r.randrange(4)
    left = "(-\\infty" if kind_ == 1 else f"{o}{a}"
    right = "\\infty)" if kind_ == 2 else f"{b}{c}"
    x = f"{left},{right}"
    o2, c2, a2, b2 = o, c, a, b
    if not eq:
        way = r.randrange(3)
        if way == 0 and kind_ != 1:
            o2 = "[" if o == "(" else "("
        elif way == 1 and kind_ != 2:
            c2 = "]" if c == ")" else ")"
        elif kind_ != 2:
            b2 = b + 1
        else:
            a2 = a - 1
    lo, hi = ("<" if o2 == "(" else "\\le"), ("<" if c2 == ")" else "\\leq")
    left = "(-\\infty" if kind_ == 1 else f"{o2}{a2}"
    right = "\\infty)" if kind_ == 2 else f"{b2}{c2}"
    forms = [f"{left}, {right}", f"\\left{left}, {right[:-1]}\\right{right[-1]}", f"x \\in {left},{right}"]
    over = {"<": ">", "\\le": "\\geq", "\\leq": "\\ge"}
    if kind_ == 1:
        forms += [f"x {hi} {b2}", f"{b2} {over[hi]} x"]
    elif kind_ == 2:
        forms += [f"x {over[lo]} {a2}", f"{a2} {lo} x"]
    else:
        forms += [f"{a2} {lo} x {hi} {b2}"]
    return x, r.choice(forms)


@kind
def unions(r, eq):
    cuts = sorted(r.sample(range(-12, 13), 4))
    o = [r.choice("([") for _ in range(2)]
    c = [r.choice(")]") for _ in range(2)]
    p = [f"{o[0]}{cuts[0]},{cuts[1]}{c[0]}", f"{o[1]}{cuts[2]},{cuts[3]}{c[1]}"]
    if r.random() < 0.4:
        p[0] = f"(-\\infty,{cuts[1]}{c[0]}"
    if r.random() < 0.4:
        p[1] = f"{o[1]}{cuts[2]},\\infty)"
    x = f"{p[0]} \\cup {p[1]}"
    if eq:
        q = r.choice([[p[1], p[0]], p])
        return x, r.choice([f"{q[0]} \\cup {q[1]}", f"{q[0]}∪{q[1]}", f"x \\in {q[0]}\\cup {q[1]}", f"{q[0]} U {q[1]}"])
    bad = r.choice([f"{p[0]}", f"{p[0]} \\cup {p[1].replace(str(cuts[2]), str(cuts[2] - 1), 1)}" if cuts[2] - 1 > cuts[1] else p[1],
                    f"{p[0]} \\cap {p[1]}"])
    return x, bad


@kind
def punctured(r, eq):
    a = r.randint(-9, 9)
    b = a if eq else a + 1
    return f"(-\\infty,{a}) \\cup ({a},\\infty)", r.choice([f"\\mathbb{{R}} \\setminus \\{{{b}\\}}", f"x \\neq {b}", f"({b},\\infty)\\cup(-\\infty,{b})"])


@kind
def sets(r, eq):
    n = r.randint(2, 5)
    ns = r.sample(range(-20, 40), n)
    ms = list(ns)
    r.shuffle(ms)
    if not eq:
        way = r.randrange(3)
        if way == 0:
            ms[0] = r.choice([k for k in range(-30, 50) if k not in ns])
        elif way == 1:
            ms = ms[:-1]
        else:
            ms.append(r.choice([k for k in range(-30, 50) if k not in ns]))
    given = "\\{" + r.choice([",", ", "]).join(map(str, ms)) + "\\}"
    if r.random() < 0.2:
        given = "\\left\\{" + ",".join(map(str, ms)) + "\\right\\}"
    return "\\{" + ",".join(map(str, ns)) + "\\}", given


@kind
def lists(r, eq):
    n = r.randint(2, 4)
    ns = r.sample(range(-30, 60), n)
    ms = list(ns)
    r.shuffle(ms)
    if not eq:
        ms[0] = r.choice([k for k in range(-40, 70) if k not in ns])
    sep = r.choice([", ", ",", " \\text{ and } ", " and ", " or ", "; "]) if n == 2 else r.choice([", ", ","])
    return ", ".join(map(str, ns)), sep.join(map(str, ms))


@kind
def plus_minus(r, eq):
    a, b = r.randint(-9, 9), r.choice([2, 3, 5, 7])
    k = r.randint(1, 5)
    root = f"{k if k > 1 else ''}\\sqrt{{{b}}}"
    x = f"{a} \\pm {root}"
    c = a if eq else a + 1
    if not eq and r.random() < 0.4:
        return x, f"{a}+{root}"
    return x, r.choice([f"{c}+{root}, {c}-{root}", f"{c}-{root}, {c}+{root}", f"{c}+{root} \\text{{ and }} {c}-{root}",
                        f"x={c}\\pm {root}"])


@kind
def equations(r, eq):
    a, b = r.randint(2, 9), r.choice([n for n in range(-9, 10) if n])
    way = r.randrange(5)
    if way == 0:
        v = r.randint(-40, 40)
        return f"x={v}", r.choice([str(v if eq else v + 1), f"x = {v if eq else -v - 1}"])
    if way == 1:
        v = rational(r)
        return frac(v, r), f"{r.choice('xyzn')} = {frac(v if eq else other(v, r), r)}"
    c = b if eq else b + r.choice([1, -11])
    if way == 2:
        return f"y = {a}x{b:+d}", r.choice([f"y={a}x{c:+d}", f"{a}x - y {c:+d} = 0", f"{2 * a}x - 2y = {-2 * c}", f"y - ({c}) = {a}x"])
    if way == 3:
        return f"f(x) = {a}x{b:+d}", r.choice([f"{a}x{c:+d}", f"f(x)={c}+{a}x", f"y={a}x{c:+d}"])
    return f"x^2+y^2={a * a}", circle(a, eq, r)


def circle(a, eq, r):
    k = r.randint(2, 4)
    v = a * a * k + (0 if eq else 1)
    return r.choice([f"{k}x^2+{k}y^2={v}", f"{k}x^2+{k}y^2-{v}=0", f"{v} = {k}(x^2+y^2)"])


@kind
def ratios(r, eq):
    while True:
        a, b, k = r.randint(1, 20), r.randint(1, 20), r.randint(2, 5)
        if a != b:
            break
    x = f"{a}:{b}"
    if eq:
        return x, r.choice([f"{a * k}:{b * k}", f"{a} : {b}", f"\\frac{{{a}}}{{{b}}}"])
    return x, r.choice([f"{b}:{a}", f"{a + 1}:{b}", f"{a * k}:{b * k + 1}"])


@kind
def bases(r, eq):
    base = r.choice([2, 3, 5, 7, 8])
    n = r.randint(3, 4000)

    def digits(n):
        s = ""
        while n:
            s, n = str(n % base) + s, n // base
        return s
    m = n if eq else n + 1
    return f"{digits(n)}_{base}", r.choice([f"{digits(m)}_{{{base}}}", f"{digits(m)}_{base}", digits(m)])


@kind
def matrices(r, eq):
    rows, cols = r.choice([(2, 2), (2, 1), (3, 1), (3, 3), (2, 3)])
    vs = [[value(r) for _ in range(cols)] for _ in range(rows)]

    def write(env, pick, change=None):
        cells = [[pick(vs[i][k]) if change != (i, k) else "99" for k in range(cols)] for i in range(rows)]
        return f"\\begin{{{env}}} " + " \\\\ ".join(" & ".join(row) for row in cells) + f" \\end{{{env}}}"
    change = None if eq else (r.randrange(rows), r.randrange(cols))
    return write("pmatrix", lambda v: v[1]), write(r.choice(["pmatrix", "bmatrix"]), lambda v: v[2], change)


@kind
def vectors(r, eq):
    n = r.randint(2, 3)
    vs = [value(r) for _ in range(n)]
    b = [v[2] for v in vs]
    if not eq:
        b[r.randrange(n)] = "77"
    return "\\begin{pmatrix} " + " \\\\ ".join(v[1] for v in vs) + " \\end{pmatrix}", r.choice(
        ["(" + ", ".join(b) + ")", "\\langle " + ", ".join(b) + " \\rangle", "\\begin{bmatrix} " + " \\\\ ".join(b) + " \\end{bmatrix}"])


WORDS = ["Sunday", "Monday", "even", "odd", "yes", "no", "Evelyn", "blue", "ellipse", "parabola", "circle", "Navin", "converges", "diverges",
         "no solution", "infinitely many"]


@kind
def words(r, eq):
    w = r.choice(WORDS)
    v = w if eq else r.choice([x for x in WORDS if x != w])
    return f"\\text{{{w}}}", r.choice([v, f"\\text{{{v}}}", v.lower(), f"\\text{{{v.lower()}}}", f"{v}.", f"\\mathrm{{{v}}}" if " " not in v else v])


@kind
def choices(r, eq):
    a = r.choice("ABCDE")
    b = a if eq else r.choice([c for c in "ABCDE" if c != a])
    return r.choice([a, f"\\text{{({a})}}", f"({a})", f"\\text{{{a}}}"]), r.choice(
        [b, f"({b})", f"\\text{{{b}}}", f"\\textbf{{({b})}}", f"\\text{{({b})}}", f"\\mathrm{{({b})}}"])


@kind
def infinity(r, eq):
    a = r.choice(["\\infty", "-\\infty"])
    b = a if eq else r.choice([{"\\infty": "-\\infty", "-\\infty": "\\infty"}[a], "0", "1000000"])
    return a, {"\\infty": r.choice(["\\infty", "∞", "+\\infty"]), "-\\infty": r.choice(["-\\infty", "-∞"])}.get(b, b)


def pairs(n, seed=1):
    """n pairs, the kinds in turn, half of them equal."""
    names = sorted(KINDS)
    for i in range(n):
        name = names[i % len(names)]
        r = random.Random(f"{seed} {i}")
        eq = (i // len(names)) % 2 == 0
        truth, given = KINDS[name](r, eq)
        yield {"kind": name, "truth": truth, "given": given, "equal": eq}


# ---- labels ----

def rewritten(label, r):
    """Texts that mean what the label means, each with the name of the change."""
    out = [("spaces", re.sub(r"([-+=,])", r" \1 ", label) if not re.search(r"\d,\d|,\\!|\\,", label) else f" {label} "),
           ("dollars", label if "$" in label else f"${label}$")]
    if "\\frac" in label:
        out.append(("dfrac", label.replace("\\frac", "\\dfrac")))
    if "(" in label and "\\left" not in label:
        out.append(("left", label.replace("(", "\\left(").replace(")", "\\right)") if "[" not in label and "]" not in label else label))
    m = re.fullmatch(r"-?\d+", label)
    if m:
        out.append(("point zero", label + ".0"))
        if abs(int(label)) >= 1000:
            out.append(("thousands", f"{int(label):,}"))
        out.append(("fraction", f"\\frac{{{2 * int(label)}}}{{2}}"))
    m = re.fullmatch(r"(-?)\\frac\{(\d+)\}\{(\d+)\}", label)
    if m:
        out.append(("slash", f"{m[1]}{m[2]}/{m[3]}"))
        out.append(("unreduced", f"{m[1]}\\frac{{{3 * int(m[2])}}}{{{3 * int(m[3])}}}"))
    if re.fullmatch(r"[-+0-9a-z^{}\\ ]*(sqrt|pi)[-+0-9a-z^{}\\ ]*", label) and "text" not in label and "frac" not in label:
        out.append(("plus zero", f"{label} + 0"))
    return out


def spoiled(label, r):
    """The label with one digit changed, where that certainly changes its value; else None."""
    if not re.fullmatch(r"-?[\d.]+|-?\\frac\{\d+\}\{\d+\}|-?\d*\\sqrt\{\d+\}|\(-?\d+, ?-?\d+\)", label):
        return None
    places = [i for i, c in enumerate(label) if c in "123456789"]
    if not places:
        return None
    i = r.choice(places)
    return label[:i] + r.choice([c for c in "123456789" if c != label[i]]) + label[i + 1:]
