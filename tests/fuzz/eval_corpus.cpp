// What fuzz_eval.cpp starts from: every layout of every data set.
#include <iterator>

#include "corpus.h"

namespace {

constexpr std::string_view kSeeds[] = {
    "lambada_openai.jsonl\n{\"text\":\"The ferry was late again\"}\n{\"text\":\"two words\"}\n",
    "wikitext.jsonl\n{\"page\":\" = A = \\n\\n One @-@ two . \\n\"}\n",
    "wikitext.jsonl\n{\"text\":\"\"}\n{\"text\":\" = A = \\n\"}\n{\"text\":\" One , two . \\n\"}\n",
    "wikitext.txt\n \n = A = \n \n One two ( three ) . \n \n = B = \n Four . \n",
    R"(arc_easy.jsonl
{"question":"Why?","choices":{"text":["x","y"],"label":["A","B"]},"answerKey":"B"})",
    R"(arc_challenge.json
[{"question":{"stem":"Why?","choices":[{"text":"x","label":"1"},{"text":"y","label":"2"}]},"answerKey":"1"}])",
    R"(arc_easy.jsonl
{"query":"Question: Why?","choices":["x","y"],"gold":1})",
    R"(hellaswag.jsonl
{"activity_label":"Baking","ctx_a":"She [title] mixes.","ctx_b":"then she","endings":["waits.","runs."],"label":"1"})",
    R"(piqa.jsonl
{"goal":"Open a jar","sol1":"Turn it","sol2":"Eat it","label":0})",
    R"(winogrande.jsonl
{"sentence":"The cup fell because _ was wet.","option1":"it","option2":"she","answer":"1"})",
    R"(winogrande.jsonl
{"context_options":["A cup","A pan"],"continuation":"fell.","gold":0})",
    R"(boolq.jsonl
{"passage":"Ice floats.","question":"does ice float","label":1}
{"passage":"Ice floats.","question":"does iron float","answer":false})",
    R"(openbookqa.jsonl
{"question_stem":"The sun","choices":{"text":["x","y"],"label":["A","B"]},"answerKey":"A"})",
    R"(swde.jsonl
{"text":"Name: Anna Height: 2","key":"height","value":"2"})",
    R"(fda.jsonl
{"text":"device: a pump\nmaker: Acme","key":"maker","value":"Acme"})",
    R"(squad.jsonl
{"context":"It rains in May.","question":"When?","answers":{"text":["May"],"answer_start":[12]}})",
    R"(squad.json
{"data":[{"title":"t","paragraphs":[{"context":"It rains.","qas":[{"question":"What?","answers":[{"text":"rains"}]}]}]}]})",
    R"(squad.jsonl
{"text":"It rains in","value":"May"})",
    R"(triviaqa.jsonl
{"question":"Who?","answer":{"value":"Ann","aliases":["Anna"]},"entity_pages":{"wiki_context":["Ann was here."]}})",
    R"(nq.jsonl
{"context":"It is Ann.","question":"who","answers":["Ann"]})",
    R"(drop.jsonl
{"passage":"They had 3.","question":"How many?","answers":["3"]})",
};

constexpr std::string_view kWords[] = {
    "2",          "\"2\"",        "\"\"",         "[]",           "{}", "[[",   "[\"a\"]", "[{\"text\":\"a\"}]",
    "\"label\":", "\"answers\":", "\"context\":", "\"choices\":", "\n", "\n\n", " = ",     "_",
    " ",          "\xef\xbb\xbf"};

}  // namespace

std::vector<std::string> qdelta::fuzz::seeds() { return {std::begin(kSeeds), std::end(kSeeds)}; }
std::span<const std::string_view> qdelta::fuzz::words() { return kWords; }
