"""Templates, conversations and random templates for compare_jinja2.py. All of them are our own."""

import itertools

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather at a place, “now” or later.",
            "parameters": {
                "type": "object",
                "properties": {
                    "place": {"type": "string", "description": "A town & country"},
                    "days": {"type": "integer", "minimum": 1, "maximum": 7},
                    "unit": {"type": ["string", "null"], "enum": ["C", "F"]},
                },
                "required": ["place"],
            },
        },
    },
    {"type": "function", "function": {"name": "noop", "description": "", "parameters": {}}},
]


def message(role, content, **more):
    return {"role": role, "content": content, **more}


CALL = {"id": "call00001", "type": "function", "function": {"name": "weather", "arguments": {"place": "Žďár", "days": 2}}}
CALL_TEXT = {"id": "call00002", "type": "function", "function": {"name": "noop", "arguments": '{"a": 1}'}}
MESSAGES = [
    [],
    [message("user", "Hello")],
    [message("system", "  Be brief.\n"), message("user", "Hi <b>you</b> & 'me' \"too\"")],
    [message("user", "One"), message("assistant", "Two"), message("user", " Three ")],
    [message("system", "S"), message("user", "ÄÖÜ ß ñ 你好 😀"), message("assistant", "Ответ\n\n"), message("user", "\tx\u3000")],
    [message("user", "a"), message("user", "b")],
    [message("assistant", "first"), message("user", "second")],
    [
        message("user", "Weather?"),
        message("assistant", None, tool_calls=[CALL, CALL_TEXT]),
        message("tool", '{"t": 21.5}', tool_call_id="call00001", name="weather"),
        message("tool", "ok", tool_call_id="call00002", name="noop"),
        message("assistant", "<think>\nIt is 21.5\n</think>\n\nWarm."),
        message("user", "Thanks"),
    ],
    [message("user", [{"type": "text", "text": "What is this?"}, {"type": "image"}]), message("assistant", "A cat.")],
    [message("system", ""), message("user", "{{ not }} {% a %} {# tag #}")],
    [message("user", "q"), message("assistant", "a", reasoning_content="because\n"), message("user", "r", name="Bob")],
    [message("developer", "d"), message("user", 5), message("assistant", True), message("user", 1.0)],
    [{"role": "user"}, {"content": "no role"}],
]
EXTRAS = [
    {},
    {"add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>"},
    {"add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>", "tools": TOOLS, "enable_thinking": False},
    {
        "add_generation_prompt": False,
        "bos_token": "",
        "eos_token": "<|end|>",
        "tools": None,
        "documents": [{"title": "T", "text": "text"}],
        "enable_thinking": True,
        "date_string": "1 Jan 2025",
        "xs": [3, 1, 2.5, True, None, "s", [1, "x"], {"k": "v"}],
        "d": {"b": 1, "A": 2, "c": None, "items": 3},
    },
]
CONVERSATIONS = [{"messages": list(m), **extra} for m, extra in itertools.product(MESSAGES, EXTRAS)]

# In the manner of chat templates: one for each construct that those of known models use, and then the corners.
TEMPLATES = [
    # A template for every family.
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
    "{% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}{% set system = messages[0]['content'] %}"
    "{% else %}{% set rest = messages %}{% set system = false %}{% endif %}{% for message in rest %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate!') }}"
    "{% endif %}{% if loop.index0 == 0 and system != false %}{% set content = '<<' + system + '>>\\n' + message['content'] %}"
    "{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}"
    "{{ bos_token + '[I] ' + content.strip() + ' [/I]' }}{% elif message['role'] == 'assistant' %}"
    "{{ ' ' + content | trim + ' ' + eos_token }}{% endif %}{% endfor %}",
    """{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "never" %}
    {%- endif %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}

{#- A comment, with {{ braces }} #}
{%- if messages and messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "Date: " + date_string + "\\n\\n" }}
{%- if tools is not none %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|h|>' + message['role'] + '<|/h|>\\n\\n'+ message['content'] | trim + '<|eot|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("One call at a time!") }}
        {%- endif %}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
""",
    """{%- set ns = namespace(multi_step=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step and message.role == "user" and message.content is string and not(message.content.startswith('<r>') and message.content.endswith('</r>')) %}
        {%- set ns.multi_step = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if message.role == "assistant" %}
        {%- set thought = '' %}
        {%- if message.reasoning_content is string %}
            {%- set thought = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last and (loop.last or (not loop.last and thought)) %}
            {{- message.role + '\\n<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- message.role + '\\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}{{- '\\n' }}{%- endif %}
                {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
                {{- '{"name": "' }}{{- tool_call.name }}{{- '", "arguments": ' }}
                {%- if tool_call.arguments is string %}{{- tool_call.arguments }}{%- else %}{{- tool_call.arguments | tojson }}{%- endif %}
                {{- '}' }}
            {%- endfor %}
        {%- endif %}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<user>' }}{%- endif %}
        {{- content }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '</user>\\n' }}{%- endif %}
    {%- else %}
        {{- '<' + message.role + '>' + content }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<assistant>' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
""",
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}"
    "{% set role = message['role'] %}{% endif %}{{ '<turn>' + role + '\\n' + message['content'] | trim + '</turn>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{'<turn>model\\n'}}{% endif %}",
    """{%- macro describe(name, schema, required=[], level=0) %}
{{- '  ' * level ~ name ~ ': ' ~ (schema.type if schema.type is string else schema.type | join('|')) }}
{%- if name in required %} (required){% endif %}
{%- if schema.enum is defined %} of {{ schema.enum | map('tojson') | join(', ') }}{% endif %}
{% if schema.properties is defined %}
{% for key, value in schema.properties | dictsort %}
{{ describe(key, value, required=schema.required or [], level=level + 1) }}
{%- endfor %}
{% endif %}
{%- endmacro %}
{%- for tool in tools or [] %}
{%- set f = tool.function %}
# {{ f.name | upper }}: {{ f.description | default('none', true) }}
{% if f.parameters %}{{ describe('parameters', f.parameters) }}{% endif %}
{% else %}
no tools
{% endfor %}
""",
    """{%- for message in messages %}
    {%- if message.content is string %}
        {{- message.content }}
    {%- else %}
        {%- for part in message.content %}
            {%- if part.type == 'image' %}<image>{%- elif part.type == 'text' %}{{ part.text }}{%- endif %}
        {%- endfor %}
    {%- endif %}
    {% generation %}{% set x = loop.index %}[{{ x }}]{% endgeneration %}
{%- endfor %}""",
    """{% for m in messages if m.role != 'system' %}
{% if loop.first %}first {% endif %}{{ loop.index }}/{{ loop.length }} {{ loop.revindex }} {{ loop.revindex0 }} {{ m.role }}
{% if loop.previtem is defined %}after {{ loop.previtem.role }}{% endif %}
{% if loop.nextitem is defined %}before {{ loop.nextitem.role }}{% endif %}
{{ loop.cycle('odd', 'even') }} {{ loop.changed(m.role) }} {{ loop.depth }}
{% if loop.last %}last{% endif %}
{% else %}
none
{% endfor %}""",
    "{% for m in messages %}{% if m.role == 'assistant' %}{% continue %}{% endif %}{% if loop.index > 3 %}{% break %}"
    "{% endif %}{{ loop.index }}{{ m.role }};{% endfor %}",
    "{% set ns = namespace(found=false) %}{% for m in messages if not ns.found %}{{ m.role }},"
    "{% if m.role == 'user' %}{% set ns.found = true %}{% endif %}{% endfor %}{{ ns.found }}{{ ns.other is defined }}",
    "{% set system = messages | selectattr('role', 'equalto', 'system') | map(attribute='content') | list %}"
    "{{ system | length }}{{ system | first | default('-') }}{{ messages | rejectattr('role', 'in', ['user', 'tool'])"
    " | map(attribute='role') | join(', ') }}",
    "{% set rest %}{% for m in messages %}{{ m.role }} {% endfor %}{% endset %}[{{ rest | trim }}]{{ rest | length }}",
    "{% set a, b = 1, [2, 3] %}{% set (c, d) = b %}{{ a }}{{ b }}{{ c }}{{ d }}{% set x = 1, %}{{ x }}",
    "{% macro m(a, b=2, c=a) %}{{ a }}{{ b }}{{ c }}{{ varargs }}{{ kwargs }}{% endmacro %}"
    "{{ m(1) }}|{{ m(1, 3, 4, 5, k=6) }}|{{ m(b=1, a=2) }}|{{ m() }}",
    "{% macro box(t) %}<{{ t }}>{{ caller(t ~ '!') }}</{{ t }}>{% endmacro %}"
    "{% call(x) box('a') %}in {{ x }}{% for m in messages %}{{ m.role }}{% endfor %}{% endcall %}",
    "{% macro f(n) %}{% if n > 0 %}{{ n }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}",
    "{% filter upper %}{% for m in messages %}{{ m.role }} {% endfor %}ß{% endfilter %}{% with a = 1, b = 2 %}{{ a + b }}"
    "{% endwith %}{{ a is defined }}",
    "{% raw %}{{ x }}{% if %}{% endraw %} {%- raw -%}  a  {%- endraw -%}  b{{ '{{' }}",
    "  {% if true %}\n  a\n  {% endif %}\n  {%+ if true %}b{% endif +%}\n  {{ 1 }}\n{{ 2 -}}\n  c {#- x -#}  d\n\n",
    "a\r\nb\rc\n{% if 1 %}\r\nx\r\n{% endif %}\n",
    "{{ 1 }}{% if messages %}\n\n{% endif %}\n   {# c #}\n  x {# d #}\n y{#- e #} z\n",
    "{{ tools | tojson }}{{ tools | tojson(indent=2) }}{{ messages | tojson(ensure_ascii=true) }}",
    "{{ d | tojson(sort_keys=true) }}{{ messages | tojson(separators=(',', ':')) }}{{ xs | default([]) | tojson(indent=0) }}",
    "{{ messages }}{{ xs }}{{ d }}{{ tools }}",
    "{{ d.items() if d }}{{ d.keys() | list if d }}{{ d.b }}{{ d['c'] }}{{ d.get('z', 5) if d }}{{ d['items'] }}"
    "{% for k, v in (d or {}).items() %}{{ k }}={{ v }};{% endfor %}{{ d | items | list if d }}",
    "{% for m in messages %}{{ m.content | upper }}{{ m.content | lower }}{{ m.content | title }}{{ m.content | capitalize }}"
    "{{ m.content | length if m.content is string }}{{ m.content | e }}{{ m.content | safe }}{{ m.content | string | reverse }}"
    "{% endfor %}",
    "{% for m in messages if m.content is string %}{{ m.content.upper() }}{{ m.content.title() }}{{ m.content.split() }}"
    "{{ m.content.split('e', 1) }}{{ m.content.replace('e', '3', 1) }}{{ m.content.find('o') }}{{ m.content[1:-1] }}"
    "{{ m.content[::-1] }}{{ m.content[0] }}{{ m.content[-1:] }}{{ m.content.count('') }}{{ m.content.splitlines() }}"
    "{{ m.content.rsplit(None, 1) }}{{ m.content.removeprefix('H') }}{{ m.content.isspace() }}{{ m.content.islower() }}"
    "{{ '-'.join(m.content) }}{{ m.content | indent(2, true) }}{{ m.content | replace('e', m.role) }}{% endfor %}",
    "{% for m in messages if m.content is string %}{% for c in m.content %}{{ c }}.{% endfor %}{{ m.content | list }}"
    "{{ m.content | first }}{{ m.content | last }}{{ m.content | unique | join }}{{ m.content | sort | join }}{% endfor %}",
    "{{ 1 + 2 * 3 - 4 / 2 }}{{ 7 // 2 }}{{ -7 // 2 }}{{ -7 % 3 }}{{ 7.5 % -2 }}{{ 2 ** 10 }}{{ 2 ** -1 }}{{ -2 ** 2 }}"
    "{{ 1 / 3 }}{{ 1e16 }}{{ 1e15 }}{{ 1e-5 }}{{ 0.0001 }}{{ 1.0 }}{{ 100 * 1.1 }}{{ 1_000 }}{{ 0x1f }}{{ 0b11 }}{{ 0o17 }}"
    "{{ 'a' * 3 }}{{ [1] * 2 }}{{ [1] + [2] }}{{ (1,) + (2,) }}{{ 'a' 'b' }}{{ 1 ~ 'a' ~ none ~ true ~ nothing }}",
    "{{ 1 < 2 < 3 }}{{ 1 < 3 < 2 }}{{ 1 == 1.0 }}{{ true == 1 }}{{ 'a' in 'abc' }}{{ 'z' not in ['a'] }}{{ [1] == (1,) }}"
    "{{ not 1 and 2 or 3 }}{{ none is none }}{{ 1 if false }}{{ 'x' if true else 'y' }}{{ [1, 2] < [1, 3] }}{{ 'b' > 'a' }}"
    "{{ {'a': 1} == {'a': 1.0} }}{{ none == false }}{{ missing == other }}{{ 1 in {1: 2} }}{{ 1 is in [1] }}",
    "{{ 3 is odd }}{{ 4 is even }}{{ 9 is divisibleby 3 }}{{ 1 is number }}{{ true is number }}{{ 1.5 is float }}"
    "{{ 1 is integer }}{{ true is integer }}{{ 'a' is string }}{{ [] is sequence }}{{ {} is mapping }}{{ 1 is iterable }}"
    "{{ x is undefined }}{{ x is defined }}{{ none is none }}{{ true is true }}{{ 0 is false }}{{ 1 is boolean }}"
    "{{ 1 is eq 1 }}{{ 1 is ne 1 }}{{ 1 is lt 2 }}{{ 2 is ge 2 }}{{ 1 is not gt 0 }}{{ range is callable }}{{ x is iterable }}"
    "{{ none is sameas none }}{{ 'a' is in 'abc' }}{{ 'A' is upper }}{{ 'a' is lower }}{{ {}.keys() is sequence }}",
    "{{ [3, 1, 2] | sort }}{{ ['b', 'A', 'c'] | sort }}{{ ['b', 'A'] | sort(case_sensitive=true) }}"
    "{{ [1, 2] | sort(reverse=true) }}{{ messages | sort(attribute='role') | map(attribute='role') | list }}"
    "{{ [1, 2, 3] | sum }}{{ [[1], [2]] | sum(start=[]) }}{{ [1, 5, 3] | max }}{{ ['b', 'A'] | min }}{{ [] | max }}"
    "{{ [1, 1, 2] | unique | list }}{{ ['a', 'A'] | unique | list }}{{ [1, 2, 3] | reverse | list }}{{ (1, 2) | last }}"
    "{{ [1, 2, 3, 4, 5] | batch(2, 0) | list }}{{ [0, 1, '', 'a'] | select | list }}{{ [1, 2, 3] | reject('odd') | list }}"
    "{{ ['a', 'b'] | map('upper') | join('-') }}{{ [{'a': {'b': 1}}] | map(attribute='a.b') | list }}"
    "{{ [{'a': 1}, {}] | map(attribute='a', default=0) | list }}{{ range(5) | list }}{{ range(5, 0, -2) | list }}{{ range(3) }}",
    "{{ 3.7 | int }}{{ '42' | int }}{{ ' 7 ' | int }}{{ 'x' | int(5) }}{{ '3.9' | int }}{{ '1e2' | int }}{{ 'ff' | int(0, 16) }}"
    "{{ '1.5' | float }}{{ 'x' | float }}{{ 2.5 | round }}{{ 3.5 | round }}{{ 2.567 | round(2) }}{{ 2.1 | round(0, 'ceil') }}"
    "{{ -3 | abs }}{{ (-3) | abs }}{{ 5 | string }}{{ none | string }}{{ true | int }}{{ none | int }}{{ 10 | round(1) }}",
    "{{ 'a\\nb\\n\\nc' | indent }}{{ 'a\\n\\nb' | indent(3, true, true) }}{{ 'a\\nb' | indent(width='>>') }}{{ '  x ' | trim }}"
    "{{ 'xxaxx' | trim('x') }}{{ 'hello world-wide (web)' | title }}{{ \"they're\" | title }}{{ 'don\\'t'.title() }}",
    "{{ '\\u00e9\\x41\\101\\n\\t\\\\\\'\\d\\é' }}{{ \"it's\" }}{{ [\"it's\", 'a\"b', 'a\\'b\"c', '\\n\\x00\\u200b é'] }}",
    "{{ 'ΣΑΣ ΟΔΟΣ'.lower() }}{{ 'ß ŉ ﬁ ǆ'.upper() }}{{ 'ǆ ß ﬁ x'.title() }}{{ 'İI'.lower() }}{{ 'ÀÉ' | lower }}{{ 'жук' | capitalize }}",
    "{{ '{} {} {{}}'.format(1, 'a') }}{{ '{0}{1}{0}'.format('a', 'b') }}{{ '{x}'.format(x=none) }}",
    "{{ nothing }}{{ nothing | default('d') }}{{ nothing | length }}{{ nothing | list }}{{ nothing | join }}{{ not nothing }}"
    "{{ '' | default('e', true) }}{{ none | default('f') }}{{ 'x' in nothing }}{{ nothing ~ 'a' }}{{ messages.nothing }}{{ messages[99] }}"
    "{{ none.x }}{{ (1).x }}{{ 'a'.b }}{% for x in nothing %}{% else %}empty{% endfor %}",
    "{{ ('<b>' | safe) + '<i>' }}{{ '<' + ('>' | e) }}{{ ('a<' | escape) | upper }}{{ ('<' | e | e) }}{{ ('<' | e) | forceescape }}",
    "{{ dict(a=1, b='x') }}{{ dict([('a', 1)]) }}{{ namespace(a=1).a }}{{ namespace({'b': 2}).b }}{{ {'a': 1, 'a': 2} }}"
    "{{ {1: 'i', 1.0: 'f', true: 't'} }}{{ {none: 1, (1, 2): 3} }}",
    "{{ [1, 2, 3][::-1] }}{{ [1, 2, 3][5:] }}{{ [1, 2, 3][-2:] }}{{ 'abc'[::2] }}{{ (1, 2, 3)[:2] }}{{ [1, 2, 3][1:][0] }}{{ [1, 2].0 }}",
    "{% for a, (b, c) in [(1, (2, 3)), (4, [5, 6])] %}{{ a + b + c }} {% endfor %}{% for x in {'a': 1, 'b': 2} %}{{ x }}{% endfor %}",
    "{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}{% if true %}{% set x = 9 %}{% endif %}{{ x }}",
    "{% set ns = namespace(t='') %}{% for m in messages %}{% set ns.t = ns.t ~ loop.index %}{% for k in m %}{{ loop.index }}"
    "{{ k }}{% endfor %}{{ loop.index }}{% endfor %}{{ ns.t }}",
    "{% set it = [1, 2, 3] | map('string') %}{% for x in it %}{{ x }}{% break %}{% endfor %}{{ it | list }}{{ it | list }}{{ 1 if it }}",
    "{% macro show() %}{{ later }}{% endmacro %}{% set later = 5 %}{{ show() }}{% set later = 6 %}{{ show() }}",
    "{% for i in [1, 2] %}{% macro inner() %}{{ i }}{{ loop.index }}{% endmacro %}{{ inner() }}{% endfor %}",
    "{{ strftime_now('%Y-%m-%d %H:%M %A %j %%') }}{{ strftime_now('') }}",
    "{% set m %}a{% set n = 5 %}{% endset %}{{ m }}{{ n is defined }}{% set u | upper | trim %} x {% endset %}[{{ u }}]",
    "{% if messages | length > 2 %}many{% elif messages %}some{% else %}none{% endif %}{% if tools is defined and tools %}tools{% endif %}",
    "{{ messages | map(attribute='role') | select('in', ['user', 'system']) | list | length }}{{ messages[-1].role if messages }}"
    "{{ (messages | last).role if messages }}{{ messages[0].get('name', 'anon') if messages }}{{ messages[0]['content'] is string if messages }}",
    "{{ f(*[1, 2], **{'a': 3}) if f is defined }}{% macro g(a, b, c=0) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ g(*[1, 2], **{'c': 3}) }}",
    # What both must refuse.
    "{{ nothing.x }}",
    "{{ nothing['x'] }}",
    "{{ 'a' + 1 }}",
    "{{ 'a' + nothing }}",
    "{{ 1 < 'a' }}",
    "{{ none | length }}",
    "{% for x in none %}{% endfor %}",
    "{% for a, b in [(1, 2, 3)] %}{% endfor %}",
    "{{ raise_exception('no') }}",
    "{{ messages.append(1) }}",
    "{{ nothing() }}",
    "{{ 1 / 0 }}",
    "{{ 5 % 0 }}",
    "{{ range(1000000) }}",
    "{{ nothing | tojson }}",
    "{% set messages.x = 1 %}",
    "{% break %}",
    "{{ 'a'.join([1]) }}",
    "{{ [1, 'a'] | sort }}",
    "{{ 1 | upper(2) }}",
    "{{ x y }}",
    "{% if %}{% endif %}",
    "{% for x in [1] %}",
    "{% endif %}",
    "{{ 'abc }}",
    "{{ (1 }}",
    "{# open",
    "{% set true = 1 %}",
    "{% for loop in [1] %}{% endfor %}",
    "{{ f(a=1, 2) }}",
    "{{ {[1]: 2} }}",
    "{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}",
    "{% macro m(a) %}{% endmacro %}{{ m(b=2) }}",
    "{{ 1 is is }}",
    "{{ a.b.c.d }}",
    "{{ '\\x4' }}",
]

NAMES = ["messages", "tools", "bos_token", "xs", "d", "nothing", "add_generation_prompt", "messages[0]", "d.b", "x"]
LITERALS = ["1", "0", "-3", "2.5", "''", "'a'", "'B c'", "'é\\n'", "none", "true", "false", "[]", "[1, 'a']", "{'k': 1}", "(1, 2)"]
FILTERS = [
    "trim", "length", "upper", "lower", "title", "capitalize", "first", "last", "list", "string", "int", "float", "reverse",
    "sort", "unique | list", "default('D')", "default('D', true)", "join('-')", "tojson", "tojson(indent=1)", "abs", "round",
    "sum", "max", "min", "map('string') | list", "select | list", "reject('none') | list", "items | list", "dictsort",
    "replace('a', 'b')", "indent", "e", "safe", "batch(2) | list", "map(attribute='role') | list", "selectattr('role') | list",
]  # fmt: skip
TESTS = [
    "defined", "undefined", "none", "string", "number", "integer", "float", "mapping", "iterable", "sequence", "boolean",
    "true", "false", "odd", "even", "in [1, 'a']", "eq 1", "divisibleby 2", "lower", "upper", "callable",
]  # fmt: skip
METHODS = [
    ".strip()", ".split('a')", ".upper()", ".title()", ".replace('a', 'bc')", ".startswith('a')", ".get('k')", ".items() | list",
    ".keys() | list", ".values() | list", "[0]", "[-1]", "['k']", ".k", ".role", ".count('a')", ".find('c')",
    ".lstrip('a')", ".rsplit()", ".splitlines()", ".isdigit()", ".index(1)",
]  # fmt: skip
OPERATORS = ["+", "-", "*", "/", "//", "%", "~", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "and", "or"]


def random_expression(rng, depth):
    kind = rng.randrange(9) if depth > 0 else 0
    if kind <= 1:
        return rng.choice(NAMES + LITERALS + LITERALS)
    inner = random_expression(rng, depth - 1)
    if kind == 2:
        return f"({inner}) | {rng.choice(FILTERS)}"
    if kind == 3:
        return f"({inner}) is {rng.choice(['', 'not '])}{rng.choice(TESTS)}"
    if kind == 4 and rng.random() < 0.2:  # jinja2 folds slices of literals that are no sequences into nothing
        return f"(({inner}) | list)[{rng.choice(['1:', '::-1', ':-1', '-2::2'])}]"
    if kind == 4:
        return f"({inner}){rng.choice(METHODS)}"
    if kind == 5:
        return f"{rng.choice(['not ', '-', '+', ''])}({inner})"
    if kind == 6:
        return f"({inner}) if {random_expression(rng, depth - 1)} else ({random_expression(rng, depth - 1)})"
    if kind == 7:
        return f"[{inner}, {random_expression(rng, depth - 1)}]"
    return f"({inner}) {rng.choice(OPERATORS)} ({random_expression(rng, depth - 1)})"


def random_body(rng, depth):
    parts = []
    for _ in range(rng.randrange(1, 4)):
        kind = rng.randrange(9) if depth > 0 else rng.randrange(4)
        space = rng.choice(["", " ", "\n", "\n  ", "  \n\n ", "\t", "a", "\u00a0\n"])
        begin, end = rng.choice(["{%", "{%-", "{%+"]), rng.choice(["%}", "-%}", "+%}"])
        if kind <= 1:
            value = f"{{{{{rng.choice(['', '-'])} {random_expression(rng, rng.randrange(4))} {rng.choice(['', '-'])}}}}}"
        elif kind == 2:
            value = rng.choice(["text", "{# c #}", "{#- c -#}", "{", "%}", "}}", "{% raw %} {{ x }} {% endraw %}"])
        elif kind == 3:
            value = f"{begin} set x = {random_expression(rng, 2)} {end}"
        elif kind <= 5:
            value = f"{begin} if {random_expression(rng, 2)} {end}{random_body(rng, depth - 1)}"
            if rng.random() < 0.5:
                value += f"{begin} else {end}{random_body(rng, depth - 1)}"
            value += f"{begin} endif {end}"
        elif kind <= 7:
            loop = rng.choice(["", "{{ loop.index }}", "{{ loop.last }}", "{% if loop.first %}{% continue %}{% endif %}"])
            value = f"{begin} for x in {random_expression(rng, 1)} {end}{loop}{random_body(rng, depth - 1)}{begin} endfor {end}"
        else:
            value = f"{begin} set x {end}{random_body(rng, depth - 1)}{begin} endset {end}"
        parts.append(space + value)
    return "".join(parts)


def random_template(rng):
    return random_body(rng, rng.randrange(3)) + rng.choice(["", "\n", " ", "\n\n"])
