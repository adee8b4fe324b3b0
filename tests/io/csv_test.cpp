// Tables as CSV.
#include "io/csv.h"

#include <cmath>
#include <limits>

#include "testing.h"

namespace qdelta {
namespace {

TEST(Csv, QuotesWhatMustBeAndKeepsNumbersExact) {
  Csv csv({"name", "count", "value"});
  csv.add({"plain", std::int64_t{7}, 0.1});
  csv.add({"a, \"b\"\nc", std::int64_t{-1}, 1e-300});
  csv.add({"", std::int64_t{0}, std::nan("")});
  csv.add({"x", std::int64_t{0}, std::numeric_limits<double>::infinity()});
  EXPECT_EQ(csv.text(), "name,count,value\nplain,7,0.1\n\"a, \"\"b\"\"\nc\",-1,1e-300\n,0,\nx,0,\n");
}

TEST(Csv, EveryRowHasEveryColumn) {
  Csv csv({"a", "b"});
  testing::expect_error(Status::invalid_argument, {"1 fields", "2 columns"}, [&] {
    csv.add({0.5});
    return 0;
  });
}

}  // namespace
}  // namespace qdelta
