"""Random small templates for templates.py: expressions and statements put together from pieces, so that filters,
methods, scopes and white space meet in ways that nobody wrote down. Most fail, on both sides.

    ... templates.py --random COUNT [--seed N]    compares so many of them, instead of the files
"""
import random

import template_snippets

# `big` is left out: our integers have 64 bits.
NAMES = [n for n in template_snippets.VARS if n != "big"] + ["missing", "loop", "x", "y", "messages"]
LITERALS = ["1", "0", "-3", "2.5", '"ab"', "'a'", "true", "false", "none", "[]", "{}", "()", '[1,"a",none]', '{"a":1,"b":[2]}', "(1,2)", '"é🙂"',
            '"Hello World"', "1e3", "10", '"%s"', '"{}"', '"<b>"', "3.0", "100000", "[3,1,2]", '["b","A"]', "range(3)", "range(5,1,-2)", "dict(a=1)",
            "namespace(a=1)", '"a,b,,c"', '"12"', '" x "']
FILTERS = ["trim", "tojson", "length", 'default("d")', "string", "list", "upper", "lower", "capitalize", "title", "dictsort", "sort", "unique|list",
           "reverse", "first", "last", 'replace("a","b")', "indent", "indent(2,true)", "int", "float", "round", "abs", "sum", "min", "max", "escape",
           "safe", 'join(",")', "join", 'map("string")|list', 'map(attribute="k")|list', 'select("odd")|list', 'selectattr("k")|list', 'reject("none")|list',
           "batch(2)|list", "slice(2)|list", 'groupby("k")|list', "truncate(5)", "center(9)", "format(1)", "tojson(indent=2)", "sort(reverse=true)",
           "round(1)", "int(3)", "count", "d(1,true)", 'attr("x")', 'rejectattr("v","eq",1)|list', 'map("upper")|list', 'sort(attribute="v")',
           'unique(attribute="k")|list', 'sum(attribute="v")', "first|string", "forceescape", "e", "urlencode", "xmlattr", "filesizeformat"]
TESTS = ["defined", "undefined", "none", "string", "mapping", "iterable", "sequence", "number", "integer", "float", "boolean", "true", "false", "odd",
         "even", "callable", "upper", "lower", 'in([1,2,"a"])', "eq(1)", 'ne("a")', "gt(1)", "divisibleby(2)", "sameas(1)", "escaped", "lt(3)", "ge(2)"]
METHODS = ["upper()", "lower()", "strip()", "split()", 'split(",")', 'split("l",1)', "title()", 'startswith("H")', 'endswith("d")', 'replace("l","L")',
           'find("o")', 'count("l")', 'join(["a","b"])', "isdigit()", "isalpha()", 'lstrip("H")', 'rstrip("d")', "splitlines()", 'partition("o")',
           'rpartition("o")', "zfill(5)", "rsplit(None,1)", "swapcase()", "capitalize()", 'index("W")', 'removeprefix("He")', 'ljust(5,"*")', "rjust(14)",
           "format(1,2)", "casefold()", "isspace()", "istitle()", "isupper()", "isalnum()", 'strip("HD")', 'find("l",4)', 'rfind("l")',
           "splitlines(true)", 'center(20,"-")', "items()", "keys()", "values()", 'get("b")', 'get("zz","q")', "copy()", "index(1)", "count(1)",
           "append(1)", "pop()", "expandtabs(4)"]
FORMATS = ['"{}"', '"{0}{0}"', '"{a}"', '"{:>6}"', '"{!r}"', '"{a!s:^8}"', '"{:.2f}"', '"{:,}"', '"{0[0]}"', '"{:<05}"', '"{:+d}"', '"{:x}"']
PERCENTS = ['"%s"', '"%d"', '"%5.1f|%s"', '"%r"', '"%x"', '"%05d"', '"%-6s|"', '"%(a)s"', '"%-05d"', '"%c"', '"%e"', '"%+.1f"']


class Maker:
    def __init__(self, seed):
        self.r = random.Random(seed)

    def pick(self, *choices):
        return self.r.choice(choices)

    def operand(self, depth):
        e = self.expr(depth)
        return e if e[0] in "([{\"'" or e.isidentifier() else "(" + e + ")"

    def expr(self, depth):
        r, sub = self.r, depth - 1
        if depth <= 0:
            return r.choice(LITERALS if r.random() < 0.5 else NAMES)
        kind = r.randrange(16)
        if kind == 0:
            op = self.pick("+", "-", "*", "/", "//", "%", "~", "==", "!=", "<", ">", "<=", ">=", "and", "or", "in", "not in")
            return "(%s %s %s)" % (self.expr(sub), op, self.expr(sub))
        if kind == 1:
            return "(%s%s)" % (self.pick("not ", "-"), self.expr(sub))
        if kind == 2:
            return "(%s if %s else %s)" % (self.expr(sub), self.expr(sub), self.expr(sub))
        if kind in (3, 4):
            return "(%s|%s)" % (self.expr(sub), r.choice(FILTERS))
        if kind == 5:
            return "(%s is %s%s)" % (self.expr(sub), self.pick("", "not "), r.choice(TESTS))
        if kind == 6:
            return "%s.%s" % (self.operand(sub), self.pick("k", "v", "b", "c", "x", "items", "A", "o", "length", "first"))
        if kind == 7:
            return "%s[%s]" % (self.operand(sub), self.expr(sub))
        if kind == 8:  # of variables: jinja2 cuts constants by other rules, when it compiles
            return "%s[%s:%s]" % (self.pick("s", "l", "u", "ls", "mixed", "d", "n"), self.pick("", "1", "-2", "0", "n"), self.pick("", "2", "-1", "3:2", ":-1"))
        if kind in (9, 10):
            return "%s.%s" % (self.operand(sub), r.choice(METHODS))
        if kind == 11:
            return "[%s]" % ", ".join(self.expr(sub) for _ in range(r.randrange(4)))
        if kind == 12:
            return "{%s}" % ", ".join("%s: %s" % (self.pick('"a"', '"b"', "1", "n", "s"), self.expr(sub)) for _ in range(r.randrange(3)))
        if kind == 13:
            return "(%s,)" % self.expr(sub)
        if kind == 14:
            return "(%s %% %s)" % (r.choice(PERCENTS), self.expr(sub))
        return "%s.format(%s, a=%s)" % (r.choice(FORMATS), self.expr(sub), self.expr(0))

    def tag(self, text):
        return "{%%%s %s %s%%}" % (self.pick("", "", "-", "+"), text, self.pick("", "", "-", "+"))

    def text(self):
        return self.pick("a", " b ", "\n", "  \n  ", "x\n\n", "", "\t", "é ", " \n")

    def body(self, depth):
        return "".join(self.text() + self.stmt(depth - 1) for _ in range(self.r.randrange(1, 3)))

    def maybe(self, share, text):
        return text if self.r.random() < share else ""

    def stmt(self, depth):
        kind = self.r.randrange(13) if depth > 0 else 0
        if kind < 3:
            return "{{%s %s %s}}" % (self.pick("", "", "-"), self.expr(2), self.pick("", "", "-")) + self.text()
        if kind == 3:
            return (self.tag("if " + self.expr(1)) + self.body(depth) + self.maybe(0.3, self.tag("elif " + self.expr(1)) + self.body(depth))
                    + self.maybe(0.5, self.tag("else") + self.body(depth)) + self.tag("endif"))
        if kind in (4, 5):
            head = "for %s in %s%s%s" % (self.pick("x", "x", "y", "x, y"), self.expr(1), self.maybe(0.25, " if " + self.expr(1)), self.maybe(0.1, " recursive"))
            inner = self.pick(self.tag("break"), self.tag("continue"), "{{ loop.index }}/{{ loop.last }}/{{ loop.length }}", "{{ loop(x) }}",
                              "{{ loop.previtem }}{{ loop.nextitem }}", "{{ loop.cycle(1,2) }}{{ loop.changed(x) }}")
            return self.tag(head) + self.body(depth) + self.maybe(0.5, inner) + self.maybe(0.3, self.tag("else") + self.body(depth)) + self.tag("endfor")
        if kind == 6:
            return self.tag("set %s = %s" % (self.pick("x", "y", "n", "x, y", "ns.a", "s"), self.expr(2)))
        if kind == 7:
            return self.tag("set %s%s" % (self.pick("x", "y", "s"), self.pick("", " | upper", " | trim | length"))) + self.body(depth) + self.tag("endset")
        if kind == 8:
            name = self.pick("m1", "m2")
            return (self.tag("macro %s(%s)" % (name, self.pick("", "x", "x, y=1", "x=n", "x, y=x"))) + self.body(depth)
                    + self.pick("", "{{ varargs }}", "{{ kwargs }}", "{{ caller() }}") + self.tag("endmacro")
                    + "{{ %s(%s) }}" % (name, self.pick("", "1", "1, 2", "x=3", "1, y=s", "y=2, z=1", "*[1,2]", '**{"x":1}')))
        if kind == 9:
            return self.tag("with %s = %s" % (self.pick("x", "n"), self.expr(1))) + self.body(depth) + self.tag("endwith")
        if kind == 10:
            return self.tag("filter " + self.pick("upper", "trim", 'replace("a","b")', "indent", "length")) + self.body(depth) + self.tag("endfilter")
        if kind == 11:
            return self.tag("generation") + self.body(depth) + self.tag("endgeneration")
        return self.tag("call%s %s()" % (self.pick("", "(x)"), self.pick("m1", "m2"))) + self.body(depth) + self.tag("endcall")

    def template(self):
        if self.r.random() < 0.5:
            return "{{ %s }}" % self.expr(self.r.randrange(1, 4))
        return self.tag("set ns = namespace(a=1, x=[])") + "".join(self.text() + self.stmt(self.r.randrange(0, 4)) for _ in range(self.r.randrange(1, 4)))


def templates(count, seed):
    maker = Maker(seed)
    return [maker.template() for _ in range(count)]
