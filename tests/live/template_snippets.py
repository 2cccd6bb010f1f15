"""Small templates, one feature each, for the parity run and for tests/golden/jinja_snippets.json (which
`templates.py --golden` writes and test_jinja reads)."""

VARS = {
    "s": "Hello World", "e": "", "u": "naïve 日本語 🙂", "n": 7, "neg": -7, "z": 0, "f": 2.5, "g": 1e-7, "big": 1e22,
    "t": True, "no": False, "none_": None, "l": [3, 1, 2], "ls": ["b", "A", "c", "a"], "el": [], "ed": {},
    "d": {"b": 1, "A": [1, 2.0, None, True], "c": {"x": "y'z"}, "items": "shadow"},
    "rows": [{"k": "x", "v": 1, "o": {"p": 1}}, {"k": "Y", "v": 2}, {"k": "x", "v": 3, "o": {"p": 2}}],
    "ml": "one\n\ntwo\r\nthree\n", "html": "<a href=\"x\">'&'</a>", "q": "it's \"q\" \\ \n\t\x01\x7f\u00a0\u200b\U0001f600",
    "pad": "  \t x y \n", "mixed": [1, "a", None, 2.5, [1], {"k": 1}],
}

# Where we differ on purpose, with the reason.
DIFFERENT = {}

SNIPPETS = r"""
{{ s }}|{{ e }}|{{ n }}|{{ f }}|{{ t }}|{{ none_ }}|{{ missing }}|{{ l }}|{{ d }}
{{ 1.0 }} {{ 1e16 }} {{ 1e15 }} {{ 123456789012345678.0 }} {{ 0.0001 }} {{ 0.00001 }} {{ big }} {{ g }} {{ -0.0 }} {{ 1/3 }} {{ 5e-324 }} {{ 1.7976931348623157e308 }}
{{ 0.1 + 0.2 }} {{ 100.0 }} {{ 1e3 }} {{ 1_000 }} {{ 0x1F }} {{ 0b101 }} {{ 0o17 }} {{ 1_0.5_0 }}
{{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 2 ** 3 ** 2 }} {{ -2 ** 2 }}
{{ 7.5 // 2 }} {{ -7.5 // 2 }} {{ 7.5 % 2 }} {{ -7.5 % 2 }} {{ 2.0 ** 0.5 }} {{ 4 / 2 }} {{ true + 1 }} {{ true * 3 }}
{{ 1 + 2 * 3 - 4 }} {{ (1 + 2) * 3 }} {{ -n }} {{ +n }} {{ - -n }} {{ 1 - -1 }} {{ 2 - 1 - 1 }}
{{ "a" + "b" }} {{ "ab" * 3 }} {{ 3 * "ab" }} {{ "ab" * -1 }}| {{ [1] + [2] }} {{ [1, 2] * 2 }} {{ (1,) + (2, 3) }} {{ (1, 2) * 0 }}
{{ "a" ~ 1 ~ none ~ 2.0 ~ true ~ [1] ~ missing ~ "z" }} {{ 1 ~ 2 * 3 ~ 4 }}
{{ 1 ~ 2 + 3 ~ 4 }}
{{ 1 < 2 < 3 }} {{ 1 < 2 > 5 }} {{ 1 == 1.0 }} {{ true == 1 }} {{ "a" < "b" }} {{ [1, 2] < [1, 3] }} {{ (1, 2) <= (1, 2) }} {{ "a" == 1 }} {{ none == none }} {{ missing == other }} {{ missing != 1 }}
{{ 1 != 2 }} {{ 2 >= 2 }} {{ 2 <= 1 }} {{ [1, [2]] == [1, [2]] }} {{ {"a": 1} == {"a": 1.0} }} {{ [1] == (1,) }}
{{ "ell" in s }} {{ "x" not in s }} {{ 3 in l }} {{ "b" in d }} {{ "zz" in d }} {{ 1 in missing }} {{ "" in "" }} {{ none in [none] }} {{ 2 in (1, 2) }} {{ 1.0 in l }} {{ "a" in d.keys() }} {{ 1 in d.values() }} {{ ("b", 1) in d.items() }} {{ 2 in range(3) }}
{{ t and n }} {{ e or "x" }} {{ not t }} {{ not e and t }} {{ z or none_ or el }} {{ 1 and 0 or 2 }} {{ not 1 == 2 }} {{ not missing }} {{ [] and x.y }}
{{ "yes" if t else "no" }} {{ "yes" if no }}| {{ 1 if no else 2 if no else 3 }} {{ (1 if t) + 1 }} {{ "a" if missing is defined else "b" }}
{{ s[0] }} {{ s[-1] }} {{ s[99] }}| {{ l[0] }} {{ l[-1] }} {{ l[99] }}| {{ d["b"] }} {{ d.b }} {{ d["c"]["x"] }} {{ d.c.x }} {{ d.A[1] }} {{ d.zz }}| {{ d["zz"] }}| {{ l.0 }} {{ l["0"] }}|
{{ s[1:4] }} {{ s[:5] }} {{ s[6:] }} {{ s[::-1] }} {{ s[::2] }} {{ s[-5:] }} {{ s[-3:-1] }} {{ s[10:2:-2] }} {{ s[100:] }}| {{ s[:-100] }}| {{ u[1:8] }} {{ u[::-1] }} {{ u[-1] }} {{ u[2] }}
{{ l[1:] }} {{ l[::-1] }} {{ l[:1] }} {{ l[-2:] }} {{ (1, 2, 3)[1:] }} {{ l[none:2] }} {{ range(10)[2:5] }} {{ range(10)[::-3]|list }} {{ l[true:] }}
{{ d.items() }} {{ d.keys() }} {{ d.values() }} {{ d.items()|list }} {{ d|items|list }} {{ d.items()|length }} {{ ed.items()|list }}
{{ d.get("b") }} {{ d.get("zz") }} {{ d.get("zz", 5) }} {{ d.get("c").get("x") }} {{ d.get("zz", {}).get("y", "dflt") }} {{ d.get("zz", "").strip() }}|
{{ d["items"] }} {{ d.copy() }} {{ d.values()|first }} {{ d|length }} {{ d|list }} {{ d|first }} {{ d|last }}
{{ none_.x }}|{{ none_["x"] }}|{{ n.x }}|{{ s.x }}|{{ n[0] }}|{{ none_ is none }}
{{ missing.x }}
{{ missing["x"] }}
{{ missing[0] }}
{{ missing() }}
{{ missing + 1 }}
{{ missing|upper }}|{{ missing|length }}|{{ missing|list }}|{{ missing|join(",") }}|{{ missing|string }}|{{ missing|trim }}|{{ missing|default("d") }}
{{ d.zz.yy }}
{{ l[99].x }}
{{ none_ + 1 }}
{{ "a" + 1 }}
{{ 1 + "a" }}
{{ 1 / 0 }}
{{ 1 // 0 }}
{{ 1 % 0 }}
{{ 1.0 / 0 }}
{{ [1] < ["a"] }}
{{ 1 < "a" }}
{{ 1 in 2 }}
{{ 1 in "a" }}
{{ none|length }}
{{ 1|list }}
{{ missing < 1 }}
{{ [[]] in {} }}
{{ {[]: 1} }}
{{ s() }}
{{ s.foo() }}
{{ none_[1:] }}
{{ s["b":] }}
{{ d[1:] }}
{{ l[::0] }}
{{ l.append(1) }}
{{ d.update({}) }}
{{ d.pop("b") }}
{{ l.append }}|{{ l.append is defined }}|{{ s.__class__ }}|{{ d.__class__ is defined }}
{{ l.__class__.__name__ }}
{{ s.upper() }} {{ s.lower() }} {{ s.title() }} {{ s.capitalize() }} {{ s.swapcase() }} {{ "ﬁß ŉ ǆ ΑΣ İ".upper() }} {{ "ﬁß ŉ ǆ ΑΣ İ ΑΣ.".lower() }} {{ "ﬁß ŉ ǆ élan o'neill 3rd".title() }} {{ "ﬁß Ǆx".capitalize() }}
[{{ pad.strip() }}][{{ pad.lstrip() }}][{{ pad.rstrip() }}][{{ "xxaxx".strip("x") }}][{{ "abcba".strip("ab") }}][{{ "abc".lstrip("") }}][{{ "«a»".strip("»«") }}][{{ " a ".strip(none) }}][{{ "\u00a0\u2003a\u3000\u0085".strip() }}][{{ "\u200ba".strip() == "\u200ba" }}]
{{ "a,b,,c".split(",") }} {{ "a b  c ".split() }} {{ "a b c d".split(" ", 1) }} {{ "a b c d".split(none, 2) }} {{ "".split() }} {{ "".split(",") }} {{ "a--b".split("--") }} {{ " x  y z ".split(maxsplit=1) }} {{ "  ".split() }} {{ " a ".split(none, 0) }}
{{ "abc".split("") }}
{{ "a,b,c".rsplit(",", 1) }} {{ " a b  c ".rsplit() }} {{ " a b  c ".rsplit(none, 1) }} {{ "a,b,c".rsplit(",") }} {{ "aaa".rsplit("aa") }} {{ "aaa".split("aa") }}
{{ ml.splitlines() }} {{ ml.splitlines(true) }} {{ "a\x0bb\x0cc\x1cd\x85e\u2028f".splitlines() }} {{ "".splitlines() }} {{ "\n".splitlines() }} {{ "a\r\rb".splitlines() }}
{{ "a=b=c".partition("=") }} {{ "a=b=c".rpartition("=") }} {{ "abc".partition("=") }} {{ "abc".rpartition("=") }}
{{ s.startswith("He") }} {{ s.startswith(("x", "H")) }} {{ s.endswith("ld") }} {{ s.endswith(("x", "d")) }} {{ s.startswith("W", 6) }} {{ s.startswith("") }} {{ s.startswith("", 99) }} {{ s.endswith("o", 0, 5) }} {{ s.startswith("ello", -10) }}
{{ s.removeprefix("Hello ") }} {{ s.removesuffix("ld") }} {{ s.removeprefix("x") }}
{{ s.replace("l", "L") }} {{ s.replace("l", "L", 2) }} {{ "abc".replace("", "-") }} {{ "日本".replace("", ".") }} {{ s.replace("zz", "") }} {{ "aaa".replace("aa", "b") }} {{ "abc".replace("", "-", 2) }}
{{ s.find("o") }} {{ s.rfind("o") }} {{ s.find("zz") }} {{ u.find("本") }} {{ s.find("o", 5) }} {{ s.find("o", 5, 6) }} {{ s.index("W") }} {{ s.count("l") }} {{ s.count("") }} {{ u.count("") }} {{ s.find("") }} {{ "".find("") }} {{ s.rfind("") }} {{ s.find("", 99) }}
{{ s.index("zz") }}
{{ ",".join(["a", "b"]) }} {{ "".join([]) }}| {{ "-".join("abc") }} {{ ",".join({"x": 1, "y": 2}) }} {{ ", ".join(ls|sort) }}
{{ ",".join([1]) }}
{{ "ab".center(7) }}| {{ "ab".center(7, "*") }} {{ "abc".center(6, "*") }} {{ "ab".ljust(5, ".") }} {{ "ab".rjust(5) }} {{ "5".zfill(3) }} {{ "-5".zfill(4) }} {{ "ab".center(1) }}
{{ "12".isdigit() }} {{ "".isdigit() }} {{ "1.2".isdigit() }} {{ "²".isdigit() }} {{ "²".isdecimal() }} {{ "½".isnumeric() }} {{ "ab".isalpha() }} {{ "é本".isalpha() }} {{ "a1".isalnum() }} {{ " \n".isspace() }} {{ "Ab".isupper() }} {{ "AB1".isupper() }} {{ "ab1".islower() }} {{ "Ab Cd".istitle() }} {{ "ab".isascii() }} {{ "a_1".isidentifier() }} {{ "1a".isidentifier() }} {{ "\n".isprintable() }}
{{ "%s and %d" % ("x", 5) }} {{ "%5d|%-5d|%05d|%+d|% d" % (3, 3, 3, 3, 3) }} {{ "%.2f %8.3f %e %g" % (1.005, 2.5, 12345.678, 0.00001) }} {{ "%x %X %o %#x" % (255, 255, 8, 255) }} {{ "%r %s" % ("a", none) }} {{ "%%" % () }} {{ "%(a)s-%(b)d" % {"a": 1, "b": 2} }} {{ "%s" % [1, 2] }} {{ "%.2s" % "abc" }} {{ "%*d" % (5, 3) }} {{ "%c%c" % ("a", 66) }} {{ "%d" % 3.9 }} {{ "%5s|%-5s|" % ("a", "b") }} {{ "%i" % true }} {{ "%.3d" % 5 }}
{{ "%s" % (1, 2) }}
{{ "%s %s" % 1 }}
{{ "%d" % "a" }}
{{ "%s is %s"|format("a", 1) }} {{ "%(x)s"|format(x=2) }}
{{ "{} {}".format("a", 1) }} {{ "{0} {1} {0}".format("a", "b") }} {{ "{x} {y}".format(x=1, y=[2]) }} {{ "{{}} {}".format(1) }} {{ "{:>5}|{:<5}|{:^5}|{:*^7}".format("a", "b", "c", "d") }} {{ "{:05d} {:+} {:,} {:_}".format(42, 5, 1234567, 1234567) }} {{ "{:.2f} {:8.3f} {:.0f} {:e} {:g} {:%}".format(1.005, 2.5, 2.5, 12345.678, 1e-5, 0.25) }} {{ "{:x} {:X} {:#x} {:b} {:o}".format(255, 255, 255, 5, 8) }} {{ "{!r} {!s}".format("a", "b") }} {{ "{0[1]} {1.b} {1[c][x]}".format([1, 2], d) }} {{ "{:.3}".format("abcdef") }} {{ "{:{}}|".format("a", 4) }} {{ "{} {}".format(none, true) }} {{ "{:5}|{:5}|".format(true, 3) }} {{ "{}".format(1.5) }} {{ "{:.3}".format(3.14159) }} {{ "{:10}|".format(2.5) }} {{ "{:,.2f}".format(1234567.891) }}
{{ "{} {}".format(1) }}
{{ "{".format(1) }}
{{ "{:d}".format("a") }}
{{ "{x}".format(y=1) }}
{{ s|upper }} {{ s|lower }} {{ "hello wORLD-foo (bar) o'neil 3rd"|title }} {{ "hELLO w"|capitalize }} {{ 5|upper }} {{ none|upper }} {{ pad|trim }}| {{ "xax"|trim("x") }} {{ " 5 "|trim|int }} {{ 5|trim }} {{ ""|title }}|
{{ l|length }} {{ u|length }} {{ s|count }} {{ ""|length }} {{ range(5)|length }} {{ (1, 2)|length }} {{ d.keys()|length }}
{{ l|join }} {{ l|join(", ") }} {{ l|join(d=",") }} {{ rows|join("-", attribute="k") }} {{ [1, [2], none]|join("/") }} {{ "abc"|join(".") }} {{ d|join(",") }} {{ [missing, 1]|join(",") }} {{ l|join(1) }}
{{ missing|default }}| {{ missing|default("x") }} {{ e|default("x") }}| {{ e|default("x", true) }} {{ none|default("x") }} {{ none|d("x", true) }} {{ no|default("x", boolean=true) }} {{ d.zz|default("q") }} {{ missing|default(default_value=3) }}
{{ l|first }} {{ l|last }} {{ s|first }} {{ s|last }} {{ el|first }}| {{ el|last }}| {{ d|first }} {{ range(3)|last }} {{ u|last }}
{{ l|list }} {{ "añb"|list }} {{ d|list }} {{ range(3)|list }} {{ (1, 2)|list }} {{ l|map("string")|list }}
{{ l|sort }} {{ ls|sort }} {{ ls|sort(case_sensitive=true) }} {{ ls|sort(true) }} {{ ls|sort(reverse=true) }} {{ rows|sort(attribute="v", reverse=true)|map(attribute="v")|list }} {{ rows|sort(attribute="k,v")|map(attribute="v")|list }} {{ rows|sort(attribute="k")|map(attribute="v")|list }} {{ d|sort }} {{ "hello"|sort }} {{ [(2, "a"), (1, "b")]|sort }}
{{ mixed|sort }}
{{ ls|unique|list }} {{ [1, 1.0, true, 2, "A", "a"]|unique|list }} {{ ["A", "a"]|unique(true)|list }} {{ rows|unique(attribute="k")|map(attribute="v")|list }}
{{ l|reverse|list }} {{ s|reverse }} {{ (1, 2)|reverse|list }} {{ d|reverse|list }} {{ range(4)|reverse|list }} {{ l|reverse|first }} {{ u|reverse }}
{{ d|dictsort }} {{ {"a": 2, "B": 1}|dictsort(by="value") }} {{ {"b": 2, "A": 1, "c": 0}|dictsort(true) }} {{ {"b": 2, "A": 1}|dictsort(false, "key", true) }} {{ ed|dictsort }}
{{ l|min }} {{ l|max }} {{ ls|min }} {{ ls|max }} {{ rows|max(attribute="v") }} {{ el|min }}| {{ ls|min(case_sensitive=true) }} {{ l|sum }} {{ rows|sum(attribute="v") }} {{ l|sum(start=10) }} {{ [1.5, 2]|sum }} {{ el|sum }} {{ [[1], [2]]|sum(start=[]) }}
{{ rows|map(attribute="k")|list }} {{ rows[:1]|map(attribute="o.p")|list }} {{ rows|map(attribute="o.p", default=0)|list }} {{ rows|map(attribute="zz", default="q")|list }} {{ ls|map("upper")|join }} {{ l|map("string")|map("length")|list }} {{ [[1, 2], [3]]|map("join", "-")|list }} {{ [[1, 2], [3, 4]]|map(attribute=0)|list }} {{ ["a b", "c"]|map("replace", " ", "_")|list }} {{ missing|map("upper")|list }}
{{ rows|map(attribute="o.p")|list }}
{{ l|select("odd")|list }} {{ l|reject("odd")|list }} {{ l|select|list }} {{ [0, 1, "", "a", none]|select|list }} {{ l|select("gt", 1)|list }} {{ l|select("in", [1, 2])|list }} {{ l|select("==", 2)|list }} {{ mixed|select("string")|list }} {{ mixed|reject("none")|list }} {{ l|select("divisibleby", 2)|list }} {{ ls|select("lower")|list }}
{{ rows|selectattr("k", "equalto", "x")|map(attribute="v")|list }} {{ rows|selectattr("o")|list|length }} {{ rows|rejectattr("o")|list|length }} {{ rows|selectattr("o", "defined")|list|length }} {{ rows|rejectattr("k", "eq", "x")|list }} {{ rows|selectattr("v", "in", [1, 3])|map(attribute="v")|list }} {{ rows|selectattr("k", "==", "Y")|first }} {{ (rows|selectattr("k", "==", "Z")|first) is defined }}
{% if rows|selectattr("k", "==", "none") %}generator{% endif %} {{ l|map("string") is sequence }} {{ l|map("string") is iterable }} {{ (l|map("string"))|list|length }} {% set g = l|map("string") %}{{ g|list }}{{ g|list }} {% set g = l|select %}{{ g|first }}{{ g|list }} {{ 1 in (l|select) }}
{{ l|map("string")|length }}
{{ (l|map("string"))[0] }}|
{{ l|map("nofilter")|list }}
{{ l|select("notest")|list }}
{{ [1, 2, 3, 4, 5]|batch(2)|list }} {{ [1, 2, 3]|batch(2, 0)|list }} {{ [1, 2, 3, 4, 5]|slice(2)|list }} {{ [1, 2, 3]|slice(2, "x")|list }} {{ rows|groupby("k") }} {% for k, g in rows|groupby("k") %}{{ k }}:{{ g|length }};{% endfor %}
{{ 3.7|int }} {{ "42"|int }} {{ "4.9"|int }} {{ "x"|int }} {{ "x"|int(5) }} {{ none|int }} {{ true|int }} {{ "0x1f"|int(base=16) }} {{ "ff"|int(0, 16) }} {{ " 7 "|int }} {{ "1_000"|int }} {{ "-3"|int }} {{ "1e3"|int }} {{ ""|int }} {{ [1]|int }} {{ "inf"|int }} {{ "0b11"|int(0, 2) }}
{{ 3|float }} {{ "1.5"|float }} {{ "x"|float }} {{ "x"|float(2.5) }} {{ "1e3"|float }} {{ none|float }} {{ "inf"|float }} {{ "-Infinity"|float }} {{ "nan"|float }} {{ " 2 "|float }} {{ "1_0.5"|float }} {{ "0x10"|float }}
{{ 2.567|round }} {{ 2.567|round(2) }} {{ 2.5|round }} {{ 3.5|round }} {{ 2.1|round(0, "ceil") }} {{ 2.9|round(method="floor") }} {{ 7|round }} {{ 1234|round(-2) }} {{ 1.005|round(2) }} {{ -2.5|round }} {{ 2.675|round(2) }} {{ 1250|round(-2) }} {{ 2.5|round|int }}
{{ -3|abs }} {{ -3.5|abs }} {{ (-3)|abs }} {{ (-3.5)|abs }} {{ -n|abs }}
{{ "a\nb\n\nc"|indent }}| {{ "a\nb\n\nc"|indent(2) }}| {{ "a\nb\n\nc"|indent(2, true) }}| {{ "a\nb\n\nc"|indent(2, true, true) }}| {{ "a\nb\n"|indent }}| {{ "a\nb"|indent("> ") }} {{ ""|indent(4, true) }}| {{ "a"|indent(first=true) }} {{ "a\n\n"|indent(2, blank=true) }}|
{{ html }} {{ html|e }} {{ html|escape|e }} {{ html|safe }} {{ html|forceescape }} {{ html|e|forceescape }} {{ 5|e }} {{ [html]|e }}
{{ html|safe + "<b>" }} {{ "<b>" + (html|safe) }} {{ (html|safe) ~ "<b>" }} {{ ("<i>"|safe) * 2 }} {{ ["<"|safe, ">"]|join("&") }} {{ ("<"|safe).join(["a<", "b"]) }} {{ ("%s<"|safe) % "<x>" }} {{ ("{}<"|safe).format("<x>") }} {{ ("a<b"|safe).replace("a", "<") }} {{ ("a<b"|safe)|replace("a", "<") }} {{ ("<x>"|safe)|upper + "<" }} {{ ["a"|safe] }} {{ ("<x>"|safe)[0] + "<" }} {{ ("<a> <b>"|safe).split()[0] + "<" }} {{ ("<x>"|safe)|trim + "<" }} {{ ("<x>"|safe)|string + "<" }} {{ ("<x>"|safe)|tojson + "<" }} {{ ("<x>"|safe)|length }} {{ "<x>"|safe == "<x>" }} {{ ("<x>"|safe) is string }} {{ ("<x>"|safe) is escaped }} {{ {"<x>"|safe: 1}["<x>"] }} {{ "<x>"|safe|safe|indent + "<" }} {{ "<x>"|safe|default("") + "<" }} {{ "<x>"|safe|title + "<" }}
{{ q|tojson }} {{ d|tojson }} {{ mixed|tojson }} {{ u|tojson }} {{ u|tojson(ensure_ascii=true) }} {{ html|tojson }} {{ 1.0|tojson }} {{ none|tojson }} {{ true|tojson }} {{ [1e22, 1e-7, 0.1]|tojson }} {{ (1, "a")|tojson }} {{ {1: 2, none: 3, true: 4, 1.5: 5}|tojson }} {{ ed|tojson }} {{ el|tojson }} {{ [[], {}]|tojson(indent=2) }} {{ "nan"|float|tojson }} {{ "\x7f\u2028\u2029\x00\x1f/"|tojson }}
{{ d|tojson(indent=2) }} {{ d|tojson(indent=0) }} {{ d|tojson(indent="--") }} {{ d|tojson(separators=(",", ":")) }} {{ d|tojson(sort_keys=true) }} {{ d|tojson(indent=4, sort_keys=true, separators=(";", "=")) }} {{ [1, [2, {"a": []}]]|tojson(indent=1) }} {{ d|tojson(true) }} {{ d|tojson(indent=none) }}
{{ missing|tojson }}
{{ range(3)|tojson }}
{{ (l|map("string"))|tojson }}
{{ {(1, 2): 3}|tojson }}
{{ {"a": 1, 2: 3}|tojson(sort_keys=true) }}
{{ q }} {{ [q] }} {{ ["it's", 'say "hi"', "both ' and \""] }} {{ ["é\u0301", "\ud7ff", "\U0001f600", "\u00ad", "\ufeff", "\u0378"] }} {{ ("a",) }} {{ () }} {{ [] }} {{ {} }} {{ {"k": (1, [2, {"z": none}])} }} {{ [missing] }} {{ [1.0, 1e100, true] }} {{ ["\\", "\x00", "\x1b"] }}
{{ "a\tb\\n\x41\u00e9\U0001F600\101\a\'\"" }} {{ 'a\qb' }} {{ 'it''s' "joined" }}
{{ t is true }} {{ t is false }} {{ 1 is true }} {{ n is integer }} {{ t is integer }} {{ f is float }} {{ f is number }} {{ t is number }} {{ t is boolean }} {{ s is string }} {{ d is mapping }} {{ l is sequence }} {{ s is sequence }} {{ d is sequence }} {{ d is iterable }} {{ n is iterable }} {{ missing is iterable }} {{ missing is sequence }} {{ none is none }} {{ missing is none }} {{ missing is defined }} {{ missing is undefined }} {{ s is not string }} {{ range is callable }} {{ s is callable }} {{ d.items() is sequence }} {{ d.items() is iterable }} {{ range(2) is sequence }} {{ (1,) is sequence }} {{ none is iterable }} {{ d.keys() is mapping }}
{{ 3 is odd }} {{ 4 is even }} {{ 6 is divisibleby 3 }} {{ 6 is divisibleby(4) }} {{ 3 is eq 3 }} {{ 3 is equalto 4 }} {{ 3 is ne(4) }} {{ 3 is gt 2 }} {{ 3 is lessthan 2 }} {{ 3 is ge 3 }} {{ 3 is le 2 }} {{ 2 is in l }} {{ 9 is not in l }} {{ "ab" is lower }} {{ "AB" is upper }} {{ none is sameas none }} {{ true is sameas true }} {{ 1 is sameas true }} {{ "upper" is filter }} {{ "nofilter" is filter }} {{ "odd" is test }} {{ -3 is odd }} {{ 2.0 is even }}
{{ missing is odd }}
{{ x is notest }}
{% if no %}{{ x is notest }}{{ x|nofilter }}{% endif %}ok
{{ x|nofilter }}
{% if t %}{{ x|nofilter }}{% endif %}
{{ 1 if t else x|nofilter }}
{{ x|nofilter if no else 2 }}
{% for i in range(3) %}{{ i }}{% endfor %} {% for i in range(1, 10, 3) %}{{ i }},{% endfor %} {% for i in range(5, 0, -2) %}{{ i }}{% endfor %} {% for i in [] %}x{% else %}empty{% endfor %} {% for c in "añ" %}[{{ c }}]{% endfor %} {% for k in d %}{{ k }}{% endfor %} {% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %} {% for x in missing %}x{% else %}none{% endfor %} {% for a, b in [(1, 2), [3, 4]] %}{{ a }}{{ b }}{% endfor %} {% for a, (b, c) in [(1, (2, 3))] %}{{ a + b + c }}{% endfor %}
{{ range(3) }} {{ range(1, 5) }} {{ range(0, 9, 2) }} {{ range(3)[1] }} {{ range(0) or "empty" }} {{ range(5).start }}{{ range(1, 5, 2).stop }}{{ range(1, 5, 2).step }}
{{ range(100001) }}
{{ range(10**12) }}
{{ range("a") }}
{{ range(1, 5, 0) }}
{{ range(missing) }}
{% for i in 5 %}{% endfor %}
{% for i in none %}{% endfor %}
{% for a, b in [1] %}{% endfor %}
{% for a, b in [(1, 2, 3)] %}{% endfor %}
{% for x in l %}{{ loop.index }}/{{ loop.index0 }}/{{ loop.revindex }}/{{ loop.revindex0 }}/{{ loop.first }}/{{ loop.last }}/{{ loop.length }}/{{ loop.previtem }}/{{ loop.nextitem }}/{{ loop.depth }}/{{ loop.depth0 }}/{{ loop.cycle("a", "b") }}/{{ loop.changed(x > 1) }};{% endfor %}
{% for x in [1, 2, 3, 4, 5, 6] if x is odd %}{{ loop.index }}:{{ x }}:{{ loop.length }}:{{ loop.last }}:{{ loop.previtem }}:{{ loop.nextitem }};{% else %}none{% endfor %} {% for x in l if x > 9 %}x{% else %}none{% endfor %} {% for k, v in d.items() if v is mapping %}{{ k }}{% endfor %}
{% for x in [1, 2, 3, 4] if x is even %}{{ loop.revindex }}{{ loop.last }}{% endfor %} {% for x in l|map("string") %}{{ loop.length }}{{ loop.revindex0 }}{% endfor %} {% for x in [1, 2, 3] %}{% if loop.last %}{{ loop.previtem }}{% endif %}{{ loop.nextitem is defined }}{{ loop.previtem is defined }}{% endfor %}
{% set ns = namespace(stop=false) %}{% for x in [1, 2, 3, 4] if not ns.stop %}{{ x }}{% if x == 2 %}{% set ns.stop = true %}{% endif %}{% endfor %} {% set ns.stop = false %}{% for x in [1, 2, 3, 4] if not ns.stop %}{{ x }}{{ loop.last }}{% if x == 2 %}{% set ns.stop = true %}{% endif %}{% endfor %}
{% for x in [1, 2, 3, 4] %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 4 %}{% break %}{% endif %}{{ x }}{% endfor %} {% for x in [1, 2] %}{% for y in [1, 2] %}{% if y == 2 %}{% break %}{% endif %}{{ x }}{{ y }}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %} {% for x in [1] %}{% break %}{% else %}else{% endfor %} {% for x in [1] %}{% continue %}{% else %}else{% endfor %} {% for x in [1, 2] %}{% if x == 2 %}{% break %}{% endif %}{% else %}else{% endfor %}
{% break %}
{% for x in l %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}
{% for x in [[1, [2, [3]]], [4]] recursive %}{% if x is iterable %}<{{ loop(x) }}>{% else %}{{ x }}@{{ loop.depth }}{% endif %}{% endfor %}
{% for x in l %}{{ loop(x) }}{% endfor %}
{% set x = 1 %}{% for i in l %}{% set x = x + i %}{{ x }},{% endfor %}{{ x }} {% for i in l %}{{ x }}{% set x = i %}{{ x }};{% endfor %}{{ x }} {{ i is defined }} {% if t %}{% set y = 5 %}{% endif %}{{ y }} {% if no %}{% set w = 5 %}{% endif %}{{ w is defined }}
{% set ns = namespace(n=0, l=[]) %}{% for i in l %}{% set ns.n = ns.n + i %}{% set ns.l = ns.l + [i] %}{% endfor %}{{ ns.n }} {{ ns.l }} {{ ns }} {{ ns.zz }}| {{ ns["n"] }} {% set ns.new = 1 %}{{ ns.new }} {{ namespace({"a": 1}, b=2).a }} {{ ns is mapping }} {{ ns is defined }}
{% set x = 1 %}{% set x.y = 2 %}
{% set missing.y = 2 %}
{% set ns = namespace() %}{% set ns._x = 1 %}
{{ namespace(_x=1) }}
{% set a = b = 1 %}
{% set a, b = 1, 2 %}{{ a }}{{ b }} {% set a, b = b, a %}{{ a }}{{ b }} {% set (p, q) = [3, 4] %}{{ p }}{{ q }} {% set x = 1, 2 %}{{ x }} {% set ns = namespace() %}{% set ns.a, ns.b = 5, 6 %}{{ ns.a + ns.b }} {% set a, b = "xy" %}{{ a }}
{% set a, b = 1 %}
{% set a, b = 1, 2, 3 %}
{% set x %}a{{ n }}b{% endset %}{{ x }} {% set x | upper %}abc{% endset %}{{ x }} {% set x | replace("a", "b") | upper %}abc{% endset %}{{ x }} {% set x %}{% set inner = 1 %}{{ inner }}{% endset %}{{ x }}{{ inner is defined }} {% set ns = namespace() %}{% set ns.x %}blk{% endset %}{{ ns.x }} {{ x is string }}
{% with a = 1, b = n %}{{ a }}{{ b }}{% set c = 3 %}{% endwith %}{{ a is defined }}{{ c is defined }} {% with %}x{% endwith %} {% set a = 9 %}{% with a = 1, b = a %}{{ b }}{% endwith %}
{% macro m(a, b=2, c=a) %}{{ a }}-{{ b }}-{{ c }}{% endmacro %}{{ m(1) }} {{ m(1, 3) }} {{ m(b=5, a=4) }} {{ m() }}| {{ m(1, c=9) }} {{ m }} {{ m.name }} {{ m(1)|upper }} {{ m(1) is string }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(b=2) }}
{% macro m(a) %}{{ a.x }}{% endmacro %}{{ m() }}
{% macro m(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, x=4, y=5) }} {{ m() }} {% macro k() %}{{ kwargs }}{% endmacro %}{{ k(b=1, a=2) }}
{% macro m(x) %}[{{ caller() }}{{ x }}]{% endmacro %}{% call m(1) %}body{{ n }}{% endcall %} {% macro m2() %}{{ caller(1, b=2) }}{% endmacro %}{% call(a, b) m2() %}{{ a }}{{ b }}{% endcall %} {% macro m3() %}{{ caller is defined }}{% endmacro %}{{ m3() }}{% call m3() %}{% endcall %}
{% macro m() %}{{ caller() }}{% endmacro %}{{ m() }}
{% macro m() %}x{% endmacro %}{% call m() %}y{% endcall %}
{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }} {% macro outer() %}{{ late }}{% endmacro %}{% set late = 3 %}{{ outer() }} {% macro setter() %}{% set n = 100 %}{{ n }}{% endmacro %}{{ setter() }}{{ n }} {% macro g(l) %}{% for x in l %}{{ loop.index }}{% if x is iterable %}({{ g(x) }}){% endif %}{% endfor %}{% endmacro %}{{ g([1, [2, 3], 4]) }}
{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}
{% macro a(x) %}{% set y = x %}{{ b(y) }}{% endmacro %}{% macro b(y) %}<{{ y }}>{% endmacro %}{{ a(1) }} {% for i in [1, 2] %}{% macro z() %}{{ i }}{% endmacro %}{{ z() }}{% endfor %} {% if t %}{% macro cond() %}c{% endmacro %}{% endif %}{{ cond() }}
{% macro m(*args) %}{% endmacro %}
{% macro m(a, b) %}{{ a }}{{ b }}{% endmacro %}{{ m(*[1, 2]) }} {{ m(**{"a": 3, "b": 4}) }} {{ m(*[5], **{"b": 6}) }} {{ dict(a=1, **{"b": 2}) }} {{ dict([("x", 1)]) }} {{ dict({"a": 1}, b=2) }} {{ "{}{}".format(*[1, 2]) }}
{% filter upper %}abc{{ s }}{% endfilter %} {% filter replace("a", "b")|upper %}xax{% endfilter %}
{% raw %}{{ x }}{% if %}{% endraw %} {%- raw -%}  {{ y }}  {%- endraw -%}  z
{{ "{{" }} {{ "%}" }} {{ "}}" }} {{ {"a": {"b": 1}} }} {{ {"a": {"b": 1}}["a"]["b"] }} {{ [1, 2,] }} {{ {"a": 1,} }} {{ (1,) }} {{ 1, 2 }}
{% generation %}gen {{ n }}{% set inside = 1 %}{% endgeneration %} {{ inside is defined }} {% for x in l %}{% generation %}{{ x }}{{ loop.index }}{% endgeneration %}{% endfor %}
{% print n, s %} {% if n: %}colon{% endif %}
{{ raise_exception("stop it: " ~ n) }}
{% if no %}{{ raise_exception("no") }}{% endif %}fine
{{ strftime_now("%Y") | length }} {{ strftime_now is defined }} {{ strftime_now("x%%y") }} {{ strftime_now("") }}|
{% set c = cycler("a", "b") %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.reset() }}{{ c.current }} {% set j = joiner("; ") %}{{ j() }}a{{ j() }}b{{ j() }}
{{ "%s" % missing }}| {{ missing ~ "x" }} {{ [missing]|first is defined }} {{ missing if missing else "u" }} {{ (missing or {}).get("a", 1) }}
{{ s|truncate(5) }} {{ s|truncate(8, true) }} {{ s|truncate(9, false, "..", 0) }} {{ s|truncate(50) }} {{ "a b c"|wordcount }} {{ "ab"|center(6) }}| {{ d|attr("get") is defined }} {{ d|attr("b") is defined }} {{ s|attr("upper")() }}
{{ 1 if 1 else 2 ~ 3 }} {{ "a" if t else "b" ~ "c" }} {{ ("a" if no else "b") ~ "c" }} {{ not t ~ "x" }} {{ -1|abs }} {{ 2 * 3|string }}| {{ "a" ~ "b"|upper }} {{ 1 + 2|float }} {{ not n is defined }} {{ n is defined and n is number }} {{ n == 7 is true }} {{ 5 - 2 - 1 }} {{ s|length > 3 and s[0] == "H" }} {{ l|first + 1 }} {{ (l|length) - 1 }} {{ l[l|length - 1] }} {{ l[(l|length) - 1:] }}
{{ d.b == 1 and d["c"].x[0] == "y" }} {{ rows[0].o.p }} {{ rows[-1]["o"]["p"] }} {{ rows[0]["k"]|upper ~ rows[1].k|lower }} {{ (rows|first).k }} {{ (rows|last).v }} {{ rows[1:]|map(attribute="v")|join("+") }} {{ rows[::-1][0].v }} {{ rows[:2]|length }}
{{ l.index(1) }} {{ l.count(1) }} {{ (1, 2, 1).count(1) }} {{ (1, 2).index(2) }} {{ l.copy() }} {{ f.is_integer() }} {{ 2.0.is_integer() }}
{{ l.index(9) }}
{{ missing|last }}|{{ missing|first }}|{{ missing|reverse|list }}|{{ "a" % range(4) }}|{{ "a" % missing }}|{{ "a" % d }}|{{ ls|truncate(9) }}
{% set g = [1, none]|map("abs") %}{% if g %}unused errors stay unseen{% endif %} {{ g|first }} {{ 2 in ([1, 2, none]|map("abs")) }}
{% set g = [1, none]|map("abs") %}{{ g|list }}
{{ "abc".foo is defined }} {{ "abc"["upper"]() }}
{% include "x" %}
{% import "x" as y %}
{% from "x" import y %}
{% extends "x" %}
{% unknown %}
{% if %}{% endif %}
{% if t %}
{% for x in l %}{% endif %}
{{ 1 + }}
{{ (1 }}
{{ 1 ) }}
{{ [1, 2 }}
{{ "abc }}
{{ x
{% set %}
{% set 1 = 2 %}
{% set a.b.c = 2 %}
{% for 1 in l %}{% endfor %}
{% for x l %}{% endfor %}
{% macro %}{% endmacro %}
{% macro m(a=1, b) %}{% endmacro %}
{{ f(a=1, 2) }}
{{ a b }}
{{ a ? b }}
{{ a.|upper }}
{{ |upper }}
{{ a is }}
{{ "\u12" }}
{# open
{% raw %} open
{% endif %}
{% else %}
{{ 1 is defined is defined }}
{{ }}
{{ 08 }}
{{ a..b }}
{{ a[] }}
{{ {1} }}
{{ {1: 2, 3} }}
{{ $ }}
{% for loop in l %}{{ loop }}{% endfor %}
{% if t %}{% set x = 1 %}{% else %}{% set x = 2 %}{% endif %}{% if x == 1 %}one{% elif x == 2 %}two{% elif x == 3 %}three{% else %}other{% endif %} {% if no %}a{% elif no %}b{% elif t %}c{% else %}d{% endif %} {% if no %}{% endif %}|
{% for x in l %}{% set loop = 1 %}{% endfor %}
{% for i in [1, 2] %}{% for j in [1] %}{{ n }}{% endfor %}{% set n = 5 %}{% for j in [1] %}{{ n }}{% endfor %}{% endfor %}{{ n }}
{% for i in [1, 2] %}{% for j in [1] %}{{ n }}{% endfor %}{% set n = 5 %}{% for j in [1] %}{{ n }}{% endfor %}{% endfor %}
{% macro m() %}[{{ s }}]{% endmacro %}{{ m() }}{% if t %}{% set s = 1 %}{% endif %}{{ m() }}{{ s }}
{% macro m() %}[{{ s }}]{% endmacro %}{{ m() }}{% if no %}{% set s = 1 %}{% endif %}{% set s = 2 %}{{ m() }}{{ s }}
{% macro m(s) %}[{{ s }}]{% for i in [1] %}{{ s }}{% set s = 4 %}{{ s }}{% endfor %}{{ s }}{% endmacro %}{{ m(1) }}{% set s = 2 %}{{ m(s) }}
{% set x %}{% for i in [1] %}{{ n }}{% endfor %}{% set n = 1 %}{{ n }}{% endset %}{{ x }}{{ n }}
{% set x %}{% for i in [1] %}{{ n }}{% endfor %}{% set n = 1 %}{{ n }}{% endset %}{{ x }}
{% with a = n %}{% for i in [1] %}{{ s }}{% endfor %}{% set s = a %}{{ s }}{% endwith %}
{% generation %}{% for i in [1] %}{{ s }}{% endfor %}{% set s = 1 %}{{ s }}{% endgeneration %}
{% macro m() %}{{ s }}{% endmacro %}{% set a, s = 1, m() %}{{ s }}|
{% for i in [] %}{% else %}{% for i in [1] %}{{ s }}{% endfor %}{% set s = 1 %}{{ s }}{% endfor %}
{% macro late() %}{{ other() }}{% endmacro %}{% macro other() %}o{% endmacro %}{{ late() }} {{ later is defined }}{% macro later() %}{% endmacro %}{{ later is defined }}
{% macro m() %}{{ range(2)|list }}{% endmacro %}{{ m() }}{% set range = 1 %}
{% for m in rows %}{{ foo }}{% endfor %}{% set foo = 1 %}{{ foo }}
{% macro m() %}{{ n }}{% endmacro %}{{ m() }}{% set n = 1 %}{{ m() }}
{% for i in [1, 2] %}{{ n }}{% set n = i %}{{ n }}{% endfor %}{{ n }}{% set n = 5 %}
{% for i in [1, 2] %}{% if i == 2 %}{{ v is defined }}{% endif %}{% set v = i %}{% endfor %}{{ v is defined }}
{% set o = {"n": n} %}{% for k, v in o.items() %}{% set n = 3 %}{{ n }}{% endfor %}{{ n }}
{% for x in l %}{% for y in l %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %} {% for x in l %}{% set lp = loop %}{% for y in [1] %}{{ lp.index }}{{ loop.index }}{% endfor %}{% endfor %}
{{ 9223372036854775807 }} {{ 9223372036854775806 + 1 }} {{ -9223372036854775807 - 1 }} {{ 3037000499 * 3037000499 }}
{{ 1e400 }} {{ -1e400 }} {{ 1.5e3 }} {{ 1E5 }} {{ 12.0e-1 }} {{ 1e5|int }} {{ 3.0 }} {{ 1.10 }}
{{ [1, 2, 3].__len__() }}
{{ "a\u0000b"|length }} {{ "\t"|tojson }} {{ "a" "b" 'c' }}
{{ strftime_now("%Y-%m-%d %H:%M:%S") }} {{ strftime_now("%d %B %Y") }} {{ strftime_now("%A %j %U %p %I") }} {{ strftime_now("%-d %e %y %b %a") }} {{ strftime_now("%f|%z|%Z|%%|%s") }} {{ strftime_now("日本 %Y") }} {{ strftime_now(format="%c|%x|%X") }}
{{ strftime_now() }}
{{ strftime_now(1) }}
{{ strftime_now("%Y", "x") }}
{% macro m() %}[{% generation %}in macro{% endgeneration %}]{% endmacro %}ab{{ m() }}{% set x %}{% generation %}日本{% endgeneration %}{% endset %}{{ x }}{% generation %}{{ n }}{% generation %}x{% endgeneration %}{% endgeneration %}
{% for i in l %}é{% generation -%}   {{ i }}   {%- endgeneration %}{% endfor %}
{% generation %}{% endgeneration %}
{% generation %}x
{% for x in l %}{% generation %}{% break %}{% endgeneration %}{% endfor %}
{% filter upper %}a{% generation %}b{% endgeneration %}{% endfilter %}{% generation %}c{% endgeneration %}
{% macro w() %}<{{ caller() }}>{% endmacro %}x{% call w() %}y{% generation %}z{% endgeneration %}{% endcall %}
{{ d|tojson(indent=2) }} {{ d|tojson(separators=(",", ":")) }} {{ d|tojson(sort_keys=true) }} {{ u|tojson(ensure_ascii=true) }} {{ d|tojson(true, 1, ("; ", "= "), true) }} {{ [] | tojson(indent=4) }} {{ {"a": []}|tojson(indent=4) }} {{ {1: 2, none: 3, true: 4, 1.5: 5}|tojson }} {{ (1, 2)|tojson }}
{{ missing|tojson }}
{{ d.items()|tojson }}
{{ {(1, 2): 3}|tojson }}
{{ {"a": 1, 1: 2}|tojson(sort_keys=true) }}
{{ 1e400|tojson }} {{ -1e400|tojson }} {{ q|tojson }} {{ html|tojson }}
{{ d|tojson(indent="--") }} {{ d|tojson(indent=0) }} {{ d|tojson(indent=-1) }}
{{ d|tojson(foo=1) }}
{{ namespace(self=1).self }}
{% set ns = namespace() %}{{ ns.__class__ }}
{{ "".__class__ }}|{{ l.append }}
{{ l.append(1) }}
{{ d.update({"x": 1}) }}
{{ d.pop("b") }}
{{ "%s %r %d %5.2f %x %%" % ("a", "b", 3, 2.5, 255) }} {{ "%(a)s" % {"a": 1} }} {{ "{0} {1!r} {x:>5} {y:.2f}".format(1, "a", x="r", y=1.0) }} {{ "{:,}".format(1234567) }} {{ "{:05d}|{:<5}|{:^5}|{:+d}".format(42, "a", "b", 3) }}
{{ [[1, 2], [3]]|sum(start=[]) }} {{ rows|sum("v") }}
{{ rows|groupby("k")|list }} {% for g, i in rows|groupby("k") %}{{ g }}:{{ i|length }} {% endfor %} {{ rows|groupby("o.p", default=0)|length }} {{ rows|groupby("k", case_sensitive=true)|map("first")|list }}
{{ [1, 2, 3, 4, 5]|batch(2, "x")|list }} {{ [1, 2, 3, 4, 5]|slice(2, "x")|list }} {{ ls|sort(case_sensitive=true) }} {{ ls|sort(reverse=true) }} {{ rows|sort(attribute="k,v")|map(attribute="v")|list }} {{ d|dictsort(by="value", reverse=true)|length }}
{{ d|dictsort(by="value") }}
{{ rows|map(attribute="o.p", default="-")|list }} {{ rows|selectattr("o")|list|length }} {{ rows|rejectattr("v", "gt", 1)|map(attribute="v")|list }} {{ l|select("odd")|list }} {{ l|reject("equalto", 1)|list }} {{ ls|map("replace", "a", "b")|join }} {{ ls|unique|list }} {{ ls|unique(true)|list }} {{ ls|min }} {{ ls|max(case_sensitive=true) }}
{{ 42.55|round(1) }} {{ 42.55|round(1, "floor") }} {{ 42.1|round(0, "ceil") }} {{ "12abc"|int(5) }} {{ "0x1f"|int(0, 16) }} {{ "1e3"|float }} {{ "x"|float(2.5) }} {{ "3.9"|int }} {{ none|int(7) }} {{ [1]|int }} {{ 2.5|round }} {{ 3.5|round }} {{ -2.5|round|int }}
{{ "a\nb\n\nc"|indent }}|{{ "a\nb"|indent(2, true) }}|{{ "a\n\nb"|indent(2, false, true) }}|{{ "a\nb"|indent("> ") }}|{{ ""|indent(first=true) }}
{{ s|attr("nope") is defined }} {{ "%s-%s"|format(1, 2) }} {{ "%(x)s"|format(x=3) }} {{ s|replace("l", "L", 2) }} {{ l|join(", ", attribute="x") }} {{ rows|join("/", attribute="k") }} {{ l|join("-") }} {{ [1, [2]]|join }}
{{ "a" is in("abc") }} {{ 5 is divisibleby 5 }} {{ "x" is boolean }} {{ true is boolean }} {{ 1 is integer }} {{ 1.0 is float }} {{ true is integer }} {{ "<b>"|safe is escaped }} {{ true is true }} {{ 1 is true }} {{ no is false }} {{ 3 is != 4 }} {{ 3 is < 4 }}
{{ "{:<05}|{:05}|{:010,}|{:012,.1f}|{:010,}".format(7, "ab", 1234, 2.5, -7) }} {{ "{:5c}|{:<3c}|{:_x}|{:_}".format(65, 66, 1234567, 1234567) }} {{ "%-05d|%+s|%c|%5c|%05d|%#s" % (7, "a", true, "x", -3, "q") }}
{{ "{:,}".format("a") }}
{{ "{:+}".format("a") }}
{{ "{:,x}".format(10) }}
{{ "{:+c}".format(65) }}
{{ "{:5.}".format("a") }}
{{ "{:,n}".format(10) }}
{% filter length %}abc{% endfilter %}
{% call range(3) %}x{% endcall %}
{{ {1: 2}[([1],)] is defined }} {{ d[[1]] is defined }} {{ d[{}] is defined }}
{{ 3.0 ** 1000 }}
{{ dict.fromkeys("ab", 1) }} {{ dict.fromkeys([1, 2]) }} {{ dict.nope is defined }}
{{ dict.fromkeys() }}
{{ dict.fromkeys([[]]) }}
{{ "a\tb\n\tc\té\tx"|replace("q", "") }}{{ "a\tb".expandtabs(4) }}|{{ "ab\tc\n\td".expandtabs() }}|{{ "é\tx".expandtabs(3) }}|{{ "a\tb".expandtabs(0) }}|{{ "a\tb".expandtabs(tabsize=2) }}|{{ "a\r\tb".expandtabs(-1) }}
{{ "a b&c=/ü?~_.-"|urlencode }} {{ {"a": 1, "b c": "d&e/f"}|urlencode }} {{ [("x", none), ("y", "é")]|urlencode }} {{ 12|urlencode }} {{ ""|urlencode }} {{ none|urlencode }}
{{ [1, 2]|urlencode }}
{{ missing|urlencode }}|{{ []|urlencode }}
{{ 1|filesizeformat }} {{ 0|filesizeformat }} {{ 999|filesizeformat }} {{ 1000|filesizeformat }} {{ 1023|filesizeformat(true) }} {{ 1024|filesizeformat(binary=true) }} {{ 123456789|filesizeformat }} {{ 123456789|filesizeformat(true) }} {{ 1.5|filesizeformat }} {{ "2000"|filesizeformat }} {{ 1e15|filesizeformat }} {{ 1e21|filesizeformat }} {{ 1e25|filesizeformat }} {{ -5|filesizeformat }} {{ true|filesizeformat }}
{{ "x"|filesizeformat }}
{{ none|filesizeformat }}
{{ {"class": "x y", "id": none, "n": 1, "q": "<\"'>&"}|xmlattr }}|{{ {"a": 1, "b": 2}|xmlattr(false) }}|{{ {}|xmlattr }}|{{ {"u": missing}|xmlattr }}
{{ {"a b": 1}|xmlattr }}
{{ {1: 1}|xmlattr }}
{{ l|xmlattr }}
""".strip("\n")


MULTI = [
    "{# comment #}a{#- c -#}  b  {# multi\nline #}c",
    "{{ 'multi\nline'|length }} {{ \"a\nb\" }} {{ \"line\\\ncontinued\" }}",
    "  {% if t %}\n  a\n  {% endif %}\nb\n  {{ n }}\n",
    "  {%- if t -%}\n  a\n  {%- endif -%}\nb\n",
    "  {%+ if t %}x{% endif +%}\ny\n\n",
    "{% if t -%}\n\n   x {{- n }} {{ n -}}   y\n{%- endif %}\n   {# c #}\nx",
    "a {% if t %} b {% endif %} c\n    {% for x in l %}\n        {{ x }}\n    {% endfor %}\nend\n\n\n",
    "a\r\n{% if t %}\r\nb\r{% endif %}\rc\r\n",
    "\n\n{{ n }}\n\n{{ n }}\n",
    "{{ n }}\n{% if t %}\n\n{{ n }}\n  {% endif %}\n",
    "x {# a #}\n  {# b -#}\n  y {#- c #}\n z {#+ d +#}\n",
    "  {# at start #}\nx",
    "\t {%- set a = 1 %}\n\t {% set b = 2 -%}\n \n\t{{ a }}{{ b }}",
    "{% raw %}\n{{ a }}\n{% endraw %}\nb",
    "  {% raw -%}\n  {{ a }}\n  {%- endraw +%}\nb",
    "a\u00a0\u2003{%- if t %}b{% endif -%}\u00a0\u3000c",
    "{{ d\n  .c\n  .x }}{{\nn\n}}{%\nif t\n%}y{% endif %}",
    "{% for x in [1,\n 2] -%}\n  {{ x }}\n{%- endfor %}|",
    "",
    "\n",
    "plain\n",
    "{",
    "{ { n } } {n} {% if t %}{{% endif %}",
    "%} }} #}",
    "{{ n }}{{- n -}} {{ n }}",
    "{{-n}}{{ -n }}{{+n}}",
    "{{ l[-1] }}{{ l[:-1] }}{{ n-1 }}{{ n -1 }}{%- if n-1 -%}y{%- endif -%}",
]


def snippets():
    return SNIPPETS.split("\n") + MULTI
