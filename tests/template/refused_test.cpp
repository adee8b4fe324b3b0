// Templates that are wrong, need what there is not, or want too much.
#include "template_case.h"

namespace qdelta::jinja {
namespace {

TEST(JinjaRefuses, WhatItDoesNotSupportByNameAndLine) {
  EXPECT_EQ(refusal("\n\n{{ x | pprint }}", Status::unsupported),
            "the chat template uses the filter 'pprint' (line 3), which is not supported");
  EXPECT_EQ(refusal("{% if false %}{{ x is escaped }}{% endif %}", Status::unsupported),
            "the chat template uses the test 'escaped' (line 1), which is not supported");
  EXPECT_EQ(refusal("{% include 'a' %}", Status::unsupported),
            "the chat template uses the tag 'include' (line 1), which is not supported");
  EXPECT_EQ(refusal("{{ 'a'.zfill(3) }}", Status::unsupported),
            "the chat template uses the method or attribute 'zfill' of a string (line 1), which is not supported");
  EXPECT_EQ(refusal("{{ [].append(1) }}", Status::unsupported),
            "the chat template uses the method or attribute 'append' of a list (line 1), which is not supported");
  EXPECT_EQ(refusal("{{ [] | map('pprint') }}", Status::unsupported),
            "the chat template uses the filter \"pprint\" (line 1), which is not supported");
  for (const char* source : {"{{ '%s' % 1 }}", "{{ 9223372036854775807 + 1 }}", "{{ 9223372036854775808 }}",
                             "{% for x in [] recursive %}{% endfor %}", "{{ '{:>4}'.format(1) }}", "{{ cycler(1) }}",
                             "{{ range }}", "{{ [1] | map('string') }}", "{{ '\\N{DASH}' }}"}) {
    EXPECT_NE(refusal(source, Status::unsupported).find("which is not supported"), std::string::npos) << source;
  }
}

TEST(JinjaRefuses, WhatIsNoTemplate) {
  EXPECT_EQ(refusal("a\n{{ 1 ", Status::corrupt), "the chat template, line 2: a tag without an end");
  EXPECT_EQ(refusal("{% if x %}", Status::corrupt),
            "the chat template, line 1: the template ends where 'endif' is missing");
  EXPECT_EQ(refusal("\xff", Status::corrupt), "the chat template is not UTF-8 (byte 0)");
  for (const char* source :
       {"{{ }}", "{{ 1 2 }}", "{% endif %}", "{{ (1 }}", "{{ 'a }}", "{# a", "{% raw %}", "{% break %}", "{{ a. }}",
        "{% set 1 = 2 %}", "{% for x %}{% endfor %}", "{{ a[ }}", "{% macro m(a=1, b) %}{% endmacro %}", "{{ '\\x1' }}",
        "{{ ) }}", "{% for loop in [] %}{% endfor %}", "{{ f(a=1, 2) }}", "{% call 1 %}{% endcall %}", "{{ $ }}"}) {
    EXPECT_NE(refusal(source, Status::corrupt).find("the chat template, line 1: "), std::string::npos) << source;
  }
}

TEST(JinjaRefuses, WhatPythonRefuses) {
  for (const char* source :
       {"{{ 'a' + 1 }}", "{{ 1 < 'a' }}", "{{ 1 / 0 }}", "{{ none | length }}", "{% for x in 1 %}{% endfor %}",
        "{% for a, b in [[1]] %}{% endfor %}", "{{ x() }}", "{{ 1() }}", "{{ {[]: 1} }}", "{{ x | tojson }}",
        "{{ range(1000000) }}", "{{ 'a'.join([1]) }}", "{{ [1, 'a'] | sort }}", "{% set x.y = 1 %}",
        "{{ 1 | trim(2) }}", "{{ 'a' | upper(1) }}", "{{ 'a'.split('') }}", "{{ [1][::0] }}",
        "{% macro m() %}{% endmacro %}{{ m(1) }}"}) {
    EXPECT_NE(refusal(source, Status::invalid_argument).find("the chat template, line 1: "), std::string::npos)
        << source;
  }
}

TEST(JinjaRefuses, VariablesThatAreNone) {
  EXPECT_NE(refusal("", Status::invalid_argument, "[]").find("not a JSON object"), std::string::npos);
  EXPECT_NE(refusal("", Status::invalid_argument, R"({"x": 18446744073709551615})").find("18446744073709551615"),
            std::string::npos);
  const std::string deep = R"({"x": )" + std::string(5000, '[') + std::string(5000, ']') + "}";
  EXPECT_NE(refusal("", Status::invalid_argument, deep).find("levels deep"), std::string::npos);
  EXPECT_THROW(static_cast<void>(Template("{{ x }}").render({{"x", "\xff"}})), Error);
}

constexpr Limits kSmall = {.steps = 100'000, .output = 10'000, .depth = 300};

TEST(JinjaLimits, Steps) {
  const std::string loop = "{% for i in range(100000) %}";
  EXPECT_NE(refusal(loop + loop + "{% endfor %}{% endfor %}", Status::invalid_argument, "{}", kSmall).find("steps"),
            std::string::npos);
  // Shared parts make a small value that is long to print, to compare and to write as JSON.
  std::string shared = "{% set a = [1] %}{% set b = [1] %}";
  for (int i = 0; i < 60; ++i) shared += "{% set a = [a, a] %}{% set b = [b, b] %}";
  for (const char* use : {"{{ a }}", "{{ a | tojson }}", "{{ a == b }}", "{{ a < b }}", "{{ a in [b] }}"}) {
    static_cast<void>(refusal(shared + use, Status::invalid_argument, "{}", kSmall));
  }
}

TEST(JinjaLimits, Output) {
  for (const char* source :
       {"{{ 'a' * 1000000000000 }}", "{{ [1] * 1000000000000 }}", "{% for i in range(20000) %}a{% endfor %}",
        "{{ 'a' | indent(1000000000000) }}", "{{ [1] | tojson(indent=1000000000000) }}",
        "{% set n = namespace(x='a') %}{% for i in range(100) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
        "{% set s = 'a' * 5000 %}{{ s.replace('', s) }}", "{% set s = 'a' * 5000 %}{{ s | replace('a', s) }}",
        "{% set s = 'a' * 5000 %}{{ [1, 2, 3, 4] | join(s) }}", "{% set s = 'a' * 5000 %}{{ s.join('1234') }}",
        "{% set s = 'a' * 5000 %}{{ '{0}{0}{0}'.format(s) }}"}) {
    static_cast<void>(refusal(source, Status::invalid_argument, "{}", kSmall));
  }
}

TEST(JinjaLimits, Depth) {
  EXPECT_NE(refusal("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", Status::invalid_argument).find("levels deep"),
            std::string::npos);
  EXPECT_NE(refusal("{% set n = namespace(x=1) %}{% for i in range(1000) %}{% set n.x = [n.x] %}{% endfor %}",
                    Status::invalid_argument)
                .find("levels"),
            std::string::npos);
  EXPECT_NE(refusal("{% set n = namespace(x={}) %}{% for i in range(1000) %}{% set n.x = {1: n.x.get} %}{% endfor %}",
                    Status::invalid_argument)
                .find("levels"),
            std::string::npos);
  const auto repeated = [](std::string_view text, int times) {
    std::string result;
    for (int i = 0; i < times; ++i) result += text;
    return result;
  };
  for (const std::string& source :
       {"{{ " + repeated("(", 10000) + "1" + repeated(")", 10000) + " }}", "{{ 1" + repeated("+1", 10000) + " }}",
        "{{ 1" + repeated("|abs", 10000) + " }}", "{{ a" + repeated(".a", 10000) + " }}",
        "{{ " + repeated("-", 10000) + "1 }}", "{{ " + repeated("not ", 10000) + "1 }}",
        repeated("{% if 1 %}", 10000) + repeated("{% endif %}", 10000),
        "{{ 1" + repeated(" if 1 else 1", 10000) + " }}",
        "{{ " + repeated("f(a=", 10000) + "1" + repeated(")", 10000) + " }}"}) {
    static_cast<void>(refusal(source, Status::unsupported));
  }
  EXPECT_EQ(rendered("{{ 1" + repeated(" + 1", 100) + " }}"), "101");
}

}  // namespace
}  // namespace qdelta::jinja
