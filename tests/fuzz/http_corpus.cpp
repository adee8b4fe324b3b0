// What fuzz_http.cpp starts from: requests as clients send them.
#include <iterator>

#include "corpus.h"

namespace {

constexpr std::string_view kSeeds[] = {
    "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "GET /health?a=1&b HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    "HEAD /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 33\r\n\r\n"
    R"({"prompt":[1,2,3],"max_tokens":1})",
    "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    "10\r\n{\"prompt\":[1,2],\r\n10;name=value\r\n\"max_tokens\": 1}\r\n0\r\nTrailer: x\r\n\r\n",
    "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 48\r\n\r\n"
    R"({"messages":[{"role":"user","content":"hello"}]})",
    "POST /stream HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}GET /health HTTP/1.1\r\nHost: a\r\n\r\n",
    "POST /stream HTTP/1.0\r\nContent-Length: 0\r\n\r\n",
    "OPTIONS * HTTP/1.1\r\nHost: a\r\nOrigin: http://b\r\nAccess-Control-Request-Method: POST\r\n\r\n",
    "POST /refused HTTP/1.1\r\nHost: a\r\nContent-Length: 5000\r\n\r\nabc",
};

constexpr std::string_view kWords[] = {"\r\n",
                                       "\r\n\r\n",
                                       "\n",
                                       " HTTP/1.1\r\n",
                                       " HTTP/1.0\r\n",
                                       " HTTP/2.0\r\n",
                                       "GET ",
                                       "POST ",
                                       "CONNECT ",
                                       "/stream",
                                       "/health",
                                       "%00",
                                       "Content-Length: 5\r\n",
                                       "Content-Length: 4097\r\n",
                                       "Content-Length: 18446744073709551616\r\n",
                                       "Content-Length: -1\r\n",
                                       "Transfer-Encoding: chunked\r\n",
                                       "Transfer-Encoding: gzip, chunked\r\n",
                                       "Expect: 100-continue\r\n",
                                       "Connection: upgrade\r\nUpgrade: websocket\r\n",
                                       "Connection: close\r\n",
                                       "ffffffffffffffff\r\n",
                                       "0\r\n\r\n",
                                       "5\r\nhello\r\n",
                                       "Authorization: Bearer x\r\n",
                                       " folded\r\n",
                                       "\t"};

}  // namespace

std::vector<std::string> qdelta::fuzz::seeds() { return {std::begin(kSeeds), std::end(kSeeds)}; }
std::span<const std::string_view> qdelta::fuzz::words() { return kWords; }
