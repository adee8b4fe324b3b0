// What fuzz_template.cpp starts from: good templates.
#include <iterator>

#include "corpus.h"

namespace {

constexpr std::string_view kSeeds[] = {
    "{% for m in messages %}{{ '<' + m['role'] + '>\\n' + m.content | trim }}{% endfor %}\n{%- if a -%} b {% endif %}",
    "{% set n = namespace(x=1, y='') %}{% for m in messages if m.role != 'x' %}{% set n.x = n.x + loop.index %}"
    "{{ loop.last }}{{ loop.revindex }}{{ loop.nextitem }}{% break %}{% else %}{% endfor %}{{ n.x }}",
    "{% macro f(a, b=2) %}{{ a }}{{ b }}{{ kwargs }}{{ varargs }}{{ caller() }}{% endmacro %}{{ f(1, *[2], **{'c': 3}) "
    "}}"
    "{% call(x) f(1) %}c{% endcall %}{% filter upper %}ß{% endfilter %}",
    "{{ tools | tojson(indent=2) }}{{ messages | map(attribute='role') | join(', ') }}{{ [3, 1] | sort(reverse=true) }}"
    "{{ {'a': 1} | dictsort }}{{ tools[0].arguments.items() | list }}{{ messages | selectattr('content', 'string') | "
    "list }}",
    "{{ 'aébc'[1:-1:2] }}{{ 'a,b'.split(',', 1) }}{{ 1 // 2 ** 3 % 4 - 5.5 }}{{ 1 < 2 <= 3 }}{{ 'a' in 'abc' and not x "
    "is defined }}"
    "{{ '{} {0}'.format(1) }}{{ 'a\\nb' | indent(2, true) }}{{ 2.567 | round(1) }}{{ '12' | int }}{{ range(3) | list "
    "}}",
    "{% set x | trim %} a {% endset %}{% with a = 1 %}{{ a ~ x }}{% endwith %}{% raw %}{{ {% endraw %}{# c #}{% "
    "generation %}"
    "g{% endgeneration %}{% set a, (b, c) = 1, [2, 3] %}{{ strftime_now('%Y') }}{{ 'ΣΑΣ' | lower }}{{ x | e }}"
    "\n---\n{\"x\": [1, {\"k\": \"<v>\"}]}"};

constexpr std::string_view kWords[] = {"{%",
                                       "%}",
                                       "{{",
                                       "}}",
                                       "{#",
                                       "#}",
                                       "-%}",
                                       "{%-",
                                       " is ",
                                       " not ",
                                       " in ",
                                       "loop",
                                       "caller",
                                       "|list",
                                       "|map('",
                                       "|sort",
                                       "|unique",
                                       "|batch(2)",
                                       "|tojson",
                                       "|reverse",
                                       "|first",
                                       "|last",
                                       "|sum",
                                       "|e",
                                       "|safe",
                                       "|title",
                                       "|replace('",
                                       ".items()",
                                       ".get(",
                                       ".split()",
                                       "[::-1]",
                                       "[1:]",
                                       "**",
                                       "//",
                                       " ~ ",
                                       " if ",
                                       " else ",
                                       "range(9)",
                                       "namespace(",
                                       "dict(",
                                       "'\\u00",
                                       "'\\x",
                                       "{% set x = [x, x] %}",
                                       "{% endfor %}",
                                       "{% endif %}",
                                       "{% for x in x %}",
                                       "{% if x %}",
                                       "messages",
                                       "\n---\n",
                                       "*[",
                                       "**{",
                                       "|int",
                                       "|round(",
                                       "|indent(",
                                       ".format(",
                                       "{% macro f() %}",
                                       "{% endmacro %}",
                                       "{{ f() }}",
                                       "|max",
                                       "|length",
                                       "|items",
                                       "|dictsort",
                                       "==",
                                       "{% set n.x = loop %}",
                                       "{% raw %}",
                                       "9223372036854775807"};

}  // namespace

std::vector<std::string> qdelta::fuzz::seeds() { return {std::begin(kSeeds), std::end(kSeeds)}; }
std::span<const std::string_view> qdelta::fuzz::words() { return kWords; }
