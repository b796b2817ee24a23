"""The worst templates that we could think of: each is refused, quickly and in little memory."""

import resource
import time
from datetime import datetime

import pytest
from jinja2 import TemplateSyntaxError
from jinja2.exceptions import SecurityError

from spillcache.engine.template_budget import Budget
from spillcache.engine.template_sandbox import TemplateRefusal, TemplateSandbox

SANDBOX = TemplateSandbox()


def render(source, *, steps=200_000, seconds=10.0, characters=100_000, memory=1 << 24, **variables):
    run = SANDBOX.compile_template(source)
    budget = Budget(steps=steps, seconds=seconds, characters=characters, memory=memory)
    return run(variables, budget)


BIG = "{% set b = 'x' * 50000 %}"
DOUBLING = "{% set n = namespace(x='ab') %}{% for i in range(60) %}{% set n.x = OP %}{% endfor %}"

TWINS = (
    "{% set n = namespace(x=[1], y=[1]) %}{% for i in range(60) %}"
    "{% set n.x = [n.x, n.x] %}{% set n.y = [n.y, n.y] %}{% endfor %}"
)
DEEP = "{% set n = namespace(x=[1]) %}{% for i in range(ROUNDS) %}{% set n.x = [n.x] %}{% endfor %}"

TWO_LISTS = "{% set x, y = [0] * 60000, [0] * 60000 %}"

HUNGRY = {
    "nested loops": "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}",
    "loops over data": "{% for a in d %}{% for b in d %}{% for c in d %}{% endfor %}{% endfor %}"
    "{% endfor %}",
    "range": "{% for i in range(10 ** 9) %}{% endfor %}",
    "output": "{% for i in range(10000) %}" + "x" * 1000 + "{% endfor %}",
    "recursion": "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
    "doubling by ~": DOUBLING.replace("OP", "n.x ~ n.x"),
    "doubling by +": DOUBLING.replace("OP", "n.x + n.x"),
    "doubling by *": DOUBLING.replace("OP", "n.x * 2"),
    "doubling a list": DOUBLING.replace("'ab'", "[1]").replace("OP", "n.x + n.x"),
    "doubling a tuple": DOUBLING.replace("'ab'", "(1,)").replace("OP", "n.x * 2"),
    "doubling by a macro": "{% macro f(x) %}{{ x }}{{ x }}{% endmacro %}"
    + DOUBLING.replace("OP", "f(n.x)"),
    "doubling by join": DOUBLING.replace("OP", "[n.x, n.x] | join"),
    "doubling by str.join": DOUBLING.replace("OP", "n.x.join(['a', 'b', 'c'])"),
    "doubling by replace": DOUBLING.replace("OP", "n.x | replace('a', 'aa')"),
    "doubling by str.replace": DOUBLING.replace("OP", "n.x.replace('a', 'aa')"),
    "doubling by tojson": DOUBLING.replace("OP", "[n.x, n.x] | tojson"),
    "nested lists": DOUBLING.replace("'ab'", "[1]").replace("OP", "[n.x, n.x]") + "{{ n.x }}",
    "nested lists, upper": DOUBLING.replace("OP", "[n.x, n.x]") + "{{ n.x | upper | length }}",
    "nested dicts": DOUBLING.replace("OP", "{'a': n.x, 'b': n.x}") + "{{ n.x | string }}",
    "a huge number": "{{ 9 ** 99999999 }}",
    "squaring": DOUBLING.replace("'ab'", "9").replace("OP", "n.x * n.x"),
    "a long text": "{{ 'x' * 10 ** 9 }}",
    "a long list": "{{ 10 ** 9 * [0] }}",
    "padding": "{{ 'x'.ljust(10 ** 9) }}",
    "padding by item": "{{ 'x'['zfill'](10 ** 9) }}",
    "bytes": "{{ (1).to_bytes(10 ** 9, 'big') }}",
    "% on text": "{{ '%999999999d' % 1 }}",
    "str.format": "{{ '{:>999999999}'.format(1) }}",
    "str.format, later": "{% set f = 'x'.format %}{{ f(1) }}",
    "format by item": "{{ 'x'['format'](1) }}",
    "format_map": "{{ 'x'.format_map({}) }}",
    "encode": "{{ 'x'.encode() }}",
    "fromkeys": "{{ {}.fromkeys([1]) }}",
    "indent": "{{ 'x\ny' | indent(10 ** 9) }}",
    "indent by a text": BIG + "{{ ('x\n' * 1000) | indent(b) }}",
    "tojson indent": "{{ [1] | tojson(indent=10 ** 9) }}",
    "tojson separators": BIG + "{{ range(1000) | list | tojson(separators=(b, b)) }}",
    "tojson indent, nested": DEEP.replace("ROUNDS", "90")
    + "{{ ([n.x] * 90) | tojson(indent=64) }}",
    "keeping texts in a list": "{% set n = namespace(l=[]) %}{% for i in range(10000) %}"
    "{% set n.l = n.l + ['a' * 90000] %}{% endfor %}",
    "keeping texts in names": BIG + "".join(f"{{% set b{i} = b + '{i}' %}}" for i in range(500)),
    "keeping slices in names": BIG + "".join(f"{{% set b{i} = b[1:] %}}" for i in range(500)),
    "keeping pieces in names": BIG
    + "".join(f"{{% set b{i} = b.split('y') %}}" for i in range(500)),
    "keeping texts in namespaces": BIG + "{% set n = namespace() %}{% for i in range(9999) %}"
    "{% set n.x = namespace(x=n.x, t=b + 'x') %}{% endfor %}",
    "many namespaces": "{% set n = namespace() %}{% for i in range(99999) %}"
    "{% set n.x = namespace(x=n.x) %}{% endfor %}",
    "many names of namespaces": "{% macro f(n) %}"
    + "".join(f"{{% set n.x{i} = 1 %}}" for i in range(1000))
    + "{% endmacro %}{% for i in range(1000) %}{{ f(namespace()) }}{% endfor %}",
    "a macro's own text": "{% macro f() %}{% for i in range(10000) %}"
    + "x" * 10000
    + "{% endfor %}{% endmacro %}{{ f() | length }}",
    "a macro's values": BIG + "{% macro f() %}{% for i in range(10000) %}{{ b }}{% endfor %}"
    "{% endmacro %}{{ f() | length }}",
    "a set block": BIG + "{% set x %}{% for i in range(10000) %}{{ b }}{% endfor %}{% endset %}",
    "comparing": TWINS + "{{ n.x == n.y }}",
    "comparing tuples": TWINS.replace("[", "(").replace("]", ",)") + "{{ n.x < n.y }}",
    "comparing by test": TWINS + "{{ n.x is eq n.y }}",
    "comparing by in": TWINS + "{{ n.x in [n.y] }}",
    "sorting": TWINS + "{{ [n.x, n.y] | sort | length }}",
    "hashing": TWINS.replace("[", "(").replace("]", ",)") + "{{ [n.x, n.y] | unique | length }}",
    "nesting": DEEP.replace("ROUNDS", "101"),
    "nesting tuples": DEEP.replace("ROUNDS", "5000").replace("[n.x]", "(n.x,)"),
    "keys": "{{ {(1, 2): 1} }}",
    "colliding keys": "{{ {1: 1} }}",
    "sorting by many attributes": "{{ [[1]] | sort(attribute='0,' * 10000) }}",
    "varargs": "{% macro f() %}{{ f(*(varargs + varargs)) }}{% endmacro %}{{ f(1) }}",
    "kwargs": "{% macro f() %}{{ f(a=kwargs, b=kwargs) }}{% endmacro %}{{ f() }}",
    "defaults by map": BIG + "{{ range(1000) | map(attribute='x', default=b) | list | length }}",
    "searching from behind": "{% set b = 'x' * 90000 %}{{ b.rfind('xy' + b[2:]) }}",
    "stripping": "{% set b = 'x' * 90000 %}{{ b.strip('y' * 90000) }}",
    "trimming": "{% set b = 'x' * 90000 %}{{ b | trim('y' * 90000) }}",
    "a huge number by int": "{{ ('7' * 90000) | int(0, 8) }}",
    "a wide time": "{{ strftime_now('%1000000d') }}",
    "a long time": "{{ strftime_now('%A' * 51) }}",
}


@pytest.mark.parametrize("source", HUNGRY.values(), ids=HUNGRY.keys())
def test_hungry_templates_are_refused(source):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.monotonic()
    with pytest.raises((SecurityError, RecursionError)) as caught:
        render(source, d=list(range(500)))
    assert time.monotonic() - start < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 * 1024  # KiB
    assert any(word in str(caught.value) for word in ("it ", "unsafe", "recursion"))


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}",
        TWO_LISTS + "{% if x == y == x %}{% endif %}" * 2000,
        TWO_LISTS + "{% if x is eq y %}{% endif %}" * 2000,
        TWO_LISTS + "{{ range(9999) | select('in', x + [x]) | first }}",
        TWO_LISTS
        + "{% set n = namespace(f='') %}{% for i in range(50) %}{% set n.f = n.f ~ '0.' %}"
        "{% endfor %}{{ (['a'] * 9999) | map(attribute=n.f * 999 + '0') | list }}",
    ],
    ids=["loops", "comparisons", "tests", "select", "attributes"],
)
def test_the_clock_ends_it(source):
    run = SANDBOX.compile_template(source)
    start = time.monotonic()
    with pytest.raises(SecurityError, match=r"longer than 0\.1 s"):
        run({}, Budget(steps=10**12, seconds=0.1, characters=10**6, memory=1 << 28))
    assert time.monotonic() - start < 1


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ 'a' + 'b' * 3 ~ 1 ~ none }}", "abbb1None"),
        ("{{ [1] + [2] }} {{ 2 * 3 + 4 ** 2 - 7 % 4 }} {{ 1.5 * 2 }} {{ 2 * 'a' }}", None),
        ("{{ [namespace(a=1), dict({'a': 1}, b=2), dict()] }}", None),
        ("{% set n = namespace({'a': 1}, b=2) %}{% set n.a = n.a + n.b %}{{ n.a }}", "3"),
        ("{{ {'a': (1, 2), 'b': 1.5}['a'][1:] }}{{ 'abc'[::-1] }}", "(2,)cba"),
        ("{{ [1, 'b'] == [1, 'b'] }}{{ 1 < 2 < 1 }}{{ 'a' in ('a', 'b') }}", "TrueFalseTrue"),
        ("{{ 1 is odd }}{{ x is defined }}{{ 'a' is in 'ab' }}{{ [] is eq [] }}", None),
        ("{{ ['b', 'a', 'b'] | unique | sort(reverse=true) | list }}", "['b', 'a']"),
        ("{{ [{'r': 'a'}, {'r': 'b'}] | selectattr('r', 'equalto', 'b') | list }}", None),
        ("{{ [{'r': 'b'}, {'r': 'a'}] | sort(attribute='r') | map(attribute='r') | first }}", "a"),
        ("{{ none | map('upper') | list }}{{ missing | default('x') | select | list }}", "[]['x']"),
        ("{{ 'xaxx' | trim('x') }}{{ ' a ' | trim }}{{ 'xax'.rstrip('x') }}", "aaxa"),
        ("{% macro f() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, a=2) }}", "(1,){'a': 2}"),
        ("{% set x %}a{{ 1 }}{% endset %}{{ x }}{{ {'a': 1} | dictsort }}", "a1[('a', 1)]"),
        ("{{ ['a', 1] | join(', ') }} {{ ', '.join(['a', 'b']) }}", "a, 1 a, b"),
        ("{{ [{'n': 1}, {'n': 2}] | join('+', attribute='n') }}", "1+2"),
        ("{{ 'aXa' | replace('a', 'b') }} {{ 'aXa' | replace('a', 'b', 1) }}", "bXb bXa"),
        ("{{ 'aXa'.replace('a', 'b', 1) }} {{ ' x '.strip() | upper }}", "bXa X"),
        ("{{ 'a\n\nb' | indent(2) }}|{{ 'a\n\nb' | indent('> ', true, true) }}", None),
        ("{{ {'b': 1, 'a': '<é>'} | tojson }}", '{"b": 1, "a": "<é>"}'),
        ("{{ {'b': [1]} | tojson(indent=1) }}", '{\n "b": [\n  1\n ]\n}'),
        ("{{ {'b': 1, 'a': 'é'} | tojson(true, none, none, true) }}", '{"a": "\\u00e9", "b": 1}'),
        ("{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% else %}none{% endfor %}", "a1"),
        ("{% for x in [] %}{{ x }}{% else %}none{% endfor %}", "none"),
        ("{% for x in missing %}{{ x }}{% else %}none{% endfor %}", "none"),
        ("{% for x in [1,2,3] if x != 2 %}{{ loop.index }}{{ x }}{% endfor %}", "1123"),
        (
            "{% for x in [1,2,3] %}{{ loop.revindex }}{{ loop.nextitem }}"
            "{% if loop.last %}!{% endif %}{% endfor %}",
            "32231!",
        ),
        ("{% for x in [[1, []]] recursive %}{{ x[0] }}{{ loop(x[1]) }}{% endfor %}", "1"),
        ("{% for x in [1,2,3] %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}", "1"),
        ("{{ [3, 1, 2] | sort | first }}{{ [1, 2] | map('string') | list }}", "1['1', '2']"),
        ("{% for x in [1] %}\n    {% if x %}\ny\n    {% endif %}\n{% endfor %}", "y\n"),
        (
            "{{ dict(a=1).a }}{{ range(3) | list }}{{ 'a<b' }}{{ range(3) }}",
            "1[0, 1, 2]a<brange(0, 3)",
        ),
        ("{% generation %}a{% endgeneration %}{{ missing }}", "a"),
        (
            "{% macro m(obj, context) %}{{ obj ~ context }}{% endmacro %}{{ m(obj=1, context=2) }}",
            "12",
        ),
    ],
)
def test_what_templates_do_still_works(source, text):
    if text is None:
        text = {
            "{{ [1]": "[1, 2] 19 3.0 aa",
            "{{ 'a\n": "a\n\n  b|> a\n> \n> b",
            "{{ [na": "[<Namespace>, {'a': 1, 'b': 2}, {}]",
            "{{ 1 i": "TrueFalseTrueTrue",
            "{{ [{'": "[{'r': 'b'}]",
        }[source[:6]]
    assert render(source) == text


@pytest.mark.parametrize(
    "source", ["{% autoescape true %}{% endautoescape %}", "{{ 0x" + "f" * 5000 + " }}"]
)
def test_what_is_refused_when_compiling(source):
    with pytest.raises(TemplateSyntaxError, match=r"not offered|too large"):
        SANDBOX.compile_template(source)


def test_a_time_in_any_usual_format():
    now = datetime.now().astimezone()
    forms = ("%d %b %Y", "%Y-%m-%d %H:%M:%S%z", "%-d/%B 100%%")
    for form in forms:
        assert len(render(f"{{{{ strftime_now('{form}') }}}}")) == len(now.strftime(form))


def test_raise_exception():
    with pytest.raises(TemplateRefusal, match="no"):
        render("{{ raise_exception('no') }}")
