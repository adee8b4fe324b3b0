// Texts to tokens: where the context ends, begin-of-text tokens, windows over a long text.
#include "eval/encoding.h"

#include <gtest/gtest.h>

#include "eval_testing.h"

namespace qdelta::testing {
namespace {

using eval::Bos;
using eval::RequestEncoder;
using eval::TokenPair;
using eval::Tokens;

const ByteTokenizer kEncodingBytes;
const std::int32_t kBos = *ByteTokenizer().bos();

Tokens with_bos(const Tokens& tokens) {
  Tokens out{kBos};
  out.insert(out.end(), tokens.begin(), tokens.end());
  return out;
}

TEST(Encoding, WhiteSpaceAtTheEndBelongsToTheContinuation) {
  const RequestEncoder encoder(kEncodingBytes, Bos::off, 100);
  const TokenPair pair = encoder.pair("Answer: \n", " yes");
  EXPECT_EQ(pair.context, bytes_of("Answer:"));
  EXPECT_EQ(pair.continuation, bytes_of(" \n yes"));
}

TEST(Encoding, BosModes) {
  EXPECT_EQ(RequestEncoder(kEncodingBytes, Bos::off, 100).encode("ab"), bytes_of("ab"));
  EXPECT_EQ(RequestEncoder(kEncodingBytes, Bos::on, 100).encode("ab"), with_bos(bytes_of("ab")));
  // As encode_with_special: what the tokenizer's own files put in front.
  const RequestEncoder automatic(kEncodingBytes, Bos::automatic, 100);
  EXPECT_EQ(automatic.encode("ab").size(), kEncodingBytes.prefix().size() + 2);
  const TokenPair pair = RequestEncoder(kEncodingBytes, Bos::on, 100).pair("ab", " c");
  EXPECT_EQ(pair.context, with_bos(bytes_of("ab")));
  EXPECT_EQ(pair.continuation, bytes_of(" c"));
  EXPECT_EQ(eval::bos_of("auto"), Bos::automatic);
  EXPECT_NE(message_of([] { static_cast<void>(eval::bos_of("maybe")); }).find("maybe"), std::string::npos);
}

TEST(Encoding, AnEmptyContextIsOneBos) {
  for (const Bos bos : {Bos::on, Bos::off}) {
    const TokenPair pair = RequestEncoder(kEncodingBytes, bos, 100).pair("", " c");
    EXPECT_EQ(pair.context, Tokens{kBos});
    EXPECT_EQ(pair.continuation, bytes_of(" c"));
  }
}

TEST(Encoding, ALongContextLosesItsBeginning) {
  const RequestEncoder encoder(kEncodingBytes, Bos::off, 6);
  const TokenPair pair = encoder.pair("0123456789", "ab");
  // Six tokens are read, the last of the continuation is only predicted.
  EXPECT_EQ(pair.context, bytes_of("56789"));
  EXPECT_EQ(pair.continuation, bytes_of("ab"));
  EXPECT_THROW(static_cast<void>(encoder.pair("0", "abcdefg")), Error);
  EXPECT_NE(message_of([&] { static_cast<void>(encoder.pair("0", "")); }).find("no token"), std::string::npos);
}

TEST(Encoding, WindowsScoreEveryTokenOnce) {
  const RequestEncoder encoder(kEncodingBytes, Bos::off, 4);
  const std::vector<TokenPair> windows = encoder.rolling("0123456789");
  ASSERT_EQ(windows.size(), 3U);
  EXPECT_EQ(windows[0].context, Tokens{kBos});
  EXPECT_EQ(windows[0].continuation, bytes_of("0123"));
  EXPECT_EQ(windows[1].context, bytes_of("3"));
  EXPECT_EQ(windows[1].continuation, bytes_of("4567"));
  // The last window is as long as the others, so it sees more of what was before.
  EXPECT_EQ(windows[2].context, bytes_of("567"));
  EXPECT_EQ(windows[2].continuation, bytes_of("89"));
  EXPECT_TRUE(encoder.rolling("").empty());
  EXPECT_EQ(encoder.rolling("0123").size(), 1U);
  // With a begin-of-text token of its own, which the harness counts among the predicted.
  EXPECT_EQ(RequestEncoder(kEncodingBytes, Bos::on, 4).rolling("01").front().continuation, with_bos(bytes_of("01")));
}

}  // namespace
}  // namespace qdelta::testing
