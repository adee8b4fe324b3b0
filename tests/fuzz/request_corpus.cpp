// What fuzz_request.cpp starts from: good requests.
#include <iterator>

#include "corpus.h"

namespace {

constexpr std::string_view kSeeds[] = {
    R"({"model":"m","prompt":[[1,2,3],[4]],"temperature":0,"max_tokens":1,"logprobs":1,"seed":1234,"echo":true})",
    R"({"prompt":"Once","max_tokens":32,"temperature":0,"stop":["\n","</s>"],"seed":1234})",
    R"({"prompt":["a","b"],"n":2,"best_of":2,"top_p":0.9,"top_k":-1,"min_p":0.1,"repetition_penalty":1.2,"stream":true,)"
    R"("stream_options":{"include_usage":true}})",
    R"({"prompt":[1,2],"stop":"x","suffix":"","logit_bias":{},"presence_penalty":0,"ignore_eos":false,"user":null})",
    R"({"messages":[{"role":"user","content":"a"}],"max_tokens":5,"logprobs":true,"top_logprobs":2})",
    R"({"name":"a.b-c_1","from":"trunk","prompt":"text","state":"trunk","save_state":"leaf"})",
    R"({"tokens":[1,2,299],"prompt":"text","add_special_tokens":false})",
    // Prompts of token ids.
    R"({"prompt":[0,1,2,3,4,5,6,7,8,299],"max_tokens":1,"echo":true,"logprobs":5})",
    R"({"prompt":[[0],[1,2],[299,298,297]],"n":2,"max_tokens":3,"stop":["a"]})",
    R"({"tokens":[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0]})"};

constexpr std::string_view kWords[] = {"1e-999",
                                       "-9223372036854775808",
                                       "\"stop\":",
                                       "\"prompt\":",
                                       "\"n\":",
                                       "[[1]]",
                                       "[\"a\"]",
                                       "299",
                                       "1,2,",
                                       "],[",
                                       "2147483648",
                                       "-0",
                                       "1.0",
                                       "[[]]",
                                       "\"tokens\":",
                                       "300",
                                       "\"logprobs\":",
                                       "\"echo\":",
                                       "\"max_tokens\":"};

}  // namespace

std::vector<std::string> qdelta::fuzz::seeds() { return {std::begin(kSeeds), std::end(kSeeds)}; }
std::span<const std::string_view> qdelta::fuzz::words() { return kWords; }
