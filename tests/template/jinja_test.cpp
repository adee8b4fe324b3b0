// What templates mean; compare_jinja2.py has more, where there is a jinja2.
#include "template_case.h"

namespace qdelta::jinja {
namespace {

constexpr std::string_view kChat = R"({"messages": [{"role": "system", "content": " Be brief. "},
  {"role": "user", "content": "Hé <you>"}, {"role": "assistant", "content": null}], "bos_token": "<s>"})";

TEST(Jinja, RendersAConversation) {
  EXPECT_EQ(rendered("{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m['content'] | trim }}\n{% endfor %}"
                     "{% if add_generation_prompt %}<assistant>{% endif %}",
                     kChat),
            "<s><system>Be brief.\n<user>Hé <you>\n<assistant>None\n");
}

TEST(Jinja, TagsTakeTheWhiteSpaceThatTransformersTakes) {
  EXPECT_EQ(rendered("  {% if true %}\n  a\n  {% endif %}\n b\n"), "  a\n b");
  EXPECT_EQ(rendered("x  {%- if true -%}  a  {%- endif -%}  y"), "xay");
  EXPECT_EQ(rendered("  {%+ if true +%}\na{% endif %}"), "  \na");
  EXPECT_EQ(rendered("a {{- 1 -}} b\n  {# no #}\nc"), "a1b\nc");
  EXPECT_EQ(rendered("a\r\nb\r\n"), "a\nb");
  EXPECT_EQ(rendered("{% raw %}{{ x }}{% endraw %}"), "{{ x }}");
}

TEST(Jinja, VariablesOfALoopAreGoneAfterIt) {
  EXPECT_EQ(rendered("{% set x = 1 %}{% for i in [2, 3] %}{{ x }}{% set x = i %}{{ x }}{% endfor %}{{ x }}"), "12131");
  EXPECT_EQ(rendered("{% set n = namespace(x=1) %}{% for i in [2, 3] %}{% set n.x = n.x + i %}{% endfor %}{{ n.x }}"),
            "6");
}

TEST(Jinja, ALoopKnowsWhereItIs) {
  EXPECT_EQ(rendered("{% for c in 'äbc' %}{{ loop.index }}{{ c }}{{ loop.revindex0 }}{{ loop.last }} {% endfor %}"),
            "1ä2False 2b1False 3c0True ");
  EXPECT_EQ(rendered("{% for x in [1, 2, 3] if x != 2 %}{{ x }}/{{ loop.length }}{{ loop.nextitem }} {% endfor %}"),
            "1/23 3/2 ");
  EXPECT_EQ(rendered("{% for x in [] %}{% else %}none{% endfor %}{% for x in [1, 2, 3] %}{% if x == 2 %}{% continue %}"
                     "{% endif %}{{ x }}{% if x == 3 %}{% break %}{% endif %}{% endfor %}"),
            "none13");
}

TEST(Jinja, ALoopAsksForElementsAsItGoes) {
  EXPECT_EQ(rendered("{% set n = namespace(on=true) %}{% for x in [1, 2, 3] if n.on %}{{ x }}"
                     "{% if x == 2 %}{% set n.on = false %}{% endif %}{% endfor %}"),
            "12");
}

TEST(Jinja, MacrosHaveDefaultsKeywordsAndCallers) {
  EXPECT_EQ(rendered("{% macro m(a, b=2, c=a) %}{{ a }}{{ b }}{{ c }} {% endmacro %}{{ m(1) }}{{ m(b=4, a=3) }}"),
            "121 343 ");
  EXPECT_EQ(rendered("{% macro m(n) %}{{ n }}{% if n > 0 %}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(3) }}"), "3210");
  EXPECT_EQ(rendered("{% macro m() %}<{{ caller(1) }}>{% endmacro %}{% call(x) m() %}{{ x + 1 }}{% endcall %}"), "<2>");
  EXPECT_EQ(rendered("{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, k=2) }}"), "(1,){'k': 2}");
}

TEST(Jinja, BlocksCanBeSetFilteredAndGenerated) {
  EXPECT_EQ(rendered("{% set x | upper %} a {% endset %}[{{ x }}]{% filter trim %} b {% endfilter %}"), "[ A ]b");
  EXPECT_EQ(rendered("{% generation %}{% set x = 1 %}{{ x }}{% endgeneration %}{{ x is defined }}"), "1False");
  EXPECT_EQ(rendered("{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a }}"), "3");
}

TEST(Jinja, ValuesPrintAsInPython) {
  EXPECT_EQ(rendered("{{ [true, none, 1.0, 1e16, 1e-05, 'a', \"it's\", (1,), {'k': 2}] }}"),
            "[True, None, 1.0, 1e+16, 1e-05, 'a', \"it's\", (1,), {'k': 2}]");
  EXPECT_EQ(rendered("{{ x }}", R"({"x": ["\n\u0000é\u200b"]})"), "['\\n\\x00é\\u200b']");
  EXPECT_EQ(rendered("{{ 7 // -2 }} {{ -7 % 3 }} {{ 6 / 2 }} {{ 2 ** -1 }} {{ 2.5 | round }}"), "-4 2 3.0 0.5 2.0");
}

TEST(Jinja, JsonIsWrittenAsTransformersDoes) {
  constexpr std::string_view kTool = R"({"t": {"z": "é\"\n", "a": [1, 2.0, null, true], "e": {}}})";
  EXPECT_EQ(rendered("{{ t | tojson }}", kTool), R"({"z": "é\"\n", "a": [1, 2.0, null, true], "e": {}})");
  EXPECT_EQ(rendered("{{ t.a | tojson(indent=2) }}", kTool), "[\n  1,\n  2.0,\n  null,\n  true\n]");
  EXPECT_EQ(rendered("{{ t.z | tojson(ensure_ascii=true) }}{{ '😀' | tojson(true) }}", kTool),
            R"("\u00e9\"\n""\ud83d\ude00")");
  EXPECT_EQ(rendered("{{ t | tojson(separators=(',', ':'), sort_keys=true) }}", kTool),
            R"({"a":[1,2.0,null,true],"e":{},"z":"é\"\n"})");
}

TEST(Jinja, WhatIsNotThereIsUndefined) {
  EXPECT_EQ(
      rendered("[{{ x }}{{ x | length }}{{ x is defined }}{{ x | default('d') }}{{ d.k }}{{ d['k'] }}{{ none.x }}]",
               R"({"d": {}})"),
      "[0Falsed]");
  EXPECT_EQ(refusal("a\n{{ x.y }}", Status::invalid_argument), "the chat template, line 2: 'x' is undefined");
  EXPECT_EQ(refusal("{{ 'a' + d.k }}", Status::invalid_argument, R"({"d": {}})"),
            "the chat template, line 1: 'k' is undefined");
}

TEST(Jinja, IteratorsAreGoneThroughOnceAndAreTrue) {
  EXPECT_EQ(rendered("{% set i = [1, 2] | map('string') %}{{ i | join }}{{ i | join }}{{ 'yes' if i }}"), "12yes");
  EXPECT_EQ(rendered("{{ 'yes' if [] | select }}{{ 'no' if [] | select | list }}"), "yes");
}

TEST(Jinja, LettersChangeCaseAsInUnicode) {
  EXPECT_EQ(rendered("{{ 'straße ﬁ жук' | upper }} {{ 'ΟΔΟΣ ÀÉ' | lower }} {{ 'ǆ x-y' | title }}"),
            "STRASSE FI ЖУК οδος àé Ǆ X-Y");
  EXPECT_EQ(rendered("{{ 'they\\'re'.title() }} {{ 'ÉCOLE' | capitalize }}"), "They'Re École");
}

TEST(Jinja, TheClockCanBeSet) {
  Template chat("{{ strftime_now('%Y %%') }}");
  chat.clock = [] { return std::int64_t{1'000'000'000}; };
  EXPECT_EQ(chat.render(nlohmann::ordered_json::object()), "2001 %");
}

TEST(Jinja, RaisedMessagesComeAsTheyAre) {
  try {
    static_cast<void>(rendered("{{ raise_exception('roles must ' ~ 'alternate') }}"));
    FAIL();
  } catch (const Raised& raised) {
    EXPECT_STREQ(raised.what(), "roles must alternate");
    EXPECT_EQ(raised.status(), Status::invalid_argument);
  }
}

}  // namespace
}  // namespace qdelta::jinja
