// Equality, order and hashes of values, as Python has them; and dicts, which need them.
#include <algorithm>
#include <cmath>
#include <functional>

#include "template/value.h"

namespace qdelta::jinja {
namespace {

constexpr std::size_t kSmallDict = 8;  // entries that are looked through one by one

bool equal_sequences(Budget& budget, const Sequence& a, const Sequence& b) {
  if (a.kind != b.kind) return false;
  if (a.kind != SequenceKind::list && a.kind != SequenceKind::tuple) budget.unsupported("a comparison of dict views");
  if (a.elements.size() != b.elements.size()) return false;
  for (std::size_t i = 0; i < a.elements.size(); ++i) {
    if (!a.elements[i].same_object(b.elements[i]) && !equal(budget, a.elements[i], b.elements[i])) return false;
  }
  return true;
}

bool equal_dicts(Budget& budget, const Dict& a, const Dict& b) {
  if (a.entries().size() != b.entries().size()) return false;
  for (const auto& [key, value] : a.entries()) {
    const Value* other = b.find(budget, key);
    if (other == nullptr || !(value.same_object(*other) || equal(budget, value, *other))) return false;
  }
  return true;
}

bool equal_ranges(const Range& a, const Range& b) {
  if (a.length() != b.length()) return false;
  return a.length() == 0 || (a.start == b.start && (a.length() == 1 || a.step == b.step));
}

int order_numbers(const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral()) return a.integer() < b.integer() ? -1 : a.integer() > b.integer() ? 1 : 0;
  // 64 bits of mantissa hold every integer there is.
  const auto exact = [](const Value& value) {
    return value.is_integral() ? static_cast<long double>(value.integer()) : static_cast<long double>(value.real());
  };
  const long double x = exact(a);
  const long double y = exact(b);
  if (std::isnan(x) || std::isnan(y)) return 2;
  return x < y ? -1 : x > y ? 1 : 0;
}

int order_sequences(Budget& budget, const Sequence& a, const Sequence& b) {
  const std::size_t common = std::min(a.elements.size(), b.elements.size());
  for (std::size_t i = 0; i < common; ++i) {
    if (a.elements[i].same_object(b.elements[i]) || equal(budget, a.elements[i], b.elements[i])) continue;
    return order(budget, a.elements[i], b.elements[i]);
  }
  return a.elements.size() < b.elements.size() ? -1 : a.elements.size() > b.elements.size() ? 1 : 0;
}

// Equal values have equal hashes.
std::size_t hash_of(Budget& budget, const Value& value) {
  budget.charge(1);
  if (value.text() != nullptr) {
    budget.charge(value.text()->bytes.size() / 16);
    return std::hash<std::string>()(value.text()->bytes);
  }
  if (value.is_none()) return 1;
  if (value.is_number()) return std::hash<double>()(value.real() == 0 ? 0.0 : value.real());
  const Sequence* tuple = value.list_or_tuple();
  if (tuple == nullptr || tuple->kind != SequenceKind::tuple) {
    if (value.sequence() != nullptr || value.dict() != nullptr) {
      budget.fail("{} cannot be a key or be counted as unique", type_name(value));
    }
    budget.unsupported(fmt::format("{} as a key", type_name(value)));
  }
  std::size_t hash = 7;
  for (const Value& element : tuple->elements) hash = hash * 1'000'003 + hash_of(budget, element);
  return hash;
}

}  // namespace

bool equal(Budget& budget, const Value& a, const Value& b) {
  const Budget::Level level(budget);
  budget.charge(1);
  if (a.is_number() && b.is_number()) return order_numbers(a, b) == 0;
  if (a.is_undefined() || b.is_undefined()) return a.is_undefined() && b.is_undefined();
  if (a.text() != nullptr && b.text() != nullptr) {
    budget.charge(std::min(a.text()->bytes.size(), b.text()->bytes.size()) / 16);
    return a.text()->bytes == b.text()->bytes;
  }
  if (a.sequence() != nullptr && b.sequence() != nullptr) return equal_sequences(budget, *a.sequence(), *b.sequence());
  if (a.dict() != nullptr && b.dict() != nullptr) return equal_dicts(budget, *a.dict(), *b.dict());
  if (a.range() != nullptr && b.range() != nullptr) return equal_ranges(*a.range(), *b.range());
  return a.same_object(b);
}

int order(Budget& budget, const Value& a, const Value& b) {
  const Budget::Level level(budget);
  budget.charge(1);
  if (a.is_number() && b.is_number()) return order_numbers(a, b);
  if (a.text() != nullptr && b.text() != nullptr) {
    budget.charge(std::min(a.text()->bytes.size(), b.text()->bytes.size()) / 16);
    const int sign = a.text()->bytes.compare(b.text()->bytes);  // UTF-8 sorts like code points
    return sign < 0 ? -1 : sign > 0 ? 1 : 0;
  }
  const Sequence* x = a.list_or_tuple();
  const Sequence* y = b.list_or_tuple();
  if (x != nullptr && y != nullptr && x->kind == y->kind) return order_sequences(budget, *x, *y);
  budget.fail("{} and {} have no order", type_name(a), type_name(b));
}

bool contains(Budget& budget, const Value& container, const Value& element) {
  if (const Text* text = container.text()) {
    if (element.text() == nullptr) budget.fail("'in' with a string needs a string, not {}", type_name(element));
    budget.charge(1 + text->bytes.size() / 4);
    return text->bytes.find(element.text()->bytes) != std::string::npos;
  }
  if (const Dict* dict = container.dict()) return dict->find(budget, element) != nullptr;
  Iterator iterator(budget, container);
  for (Value candidate; iterator.next(candidate);) {
    if (candidate.same_object(element) || equal(budget, candidate, element)) return true;
  }
  return false;
}

std::optional<std::size_t> Dict::locate(Budget& budget, const Value& key) const {
  const std::size_t hash = hash_of(budget, key);  // of small ones too: it refuses what cannot be a key
  if (entries_.size() <= kSmallDict) {
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      if (equal(budget, entries_[i].first, key)) return i;
    }
    return std::nullopt;
  }
  const auto [first, last] = index_.equal_range(hash);
  for (auto at = first; at != last; ++at) {
    if (equal(budget, entries_[at->second].first, key)) return at->second;
  }
  return std::nullopt;
}

const Value* Dict::find(Budget& budget, const Value& key) const {
  const std::optional<std::size_t> at = locate(budget, key);
  return at ? &entries_[*at].second : nullptr;
}

void Dict::insert(Budget& budget, Value key, Value value) {
  const std::optional<std::size_t> at = locate(budget, key);
  depth_ = std::max({depth_, key.depth() + 1, value.depth() + 1});
  if (at) {
    entries_[*at].second = std::move(value);
    return;
  }
  entries_.emplace_back(std::move(key), std::move(value));
  if (entries_.size() <= kSmallDict) return;
  for (std::size_t i = index_.size(); i < entries_.size(); ++i) index_.emplace(hash_of(budget, entries_[i].first), i);
}

}  // namespace qdelta::jinja
