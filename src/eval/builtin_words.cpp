#include "eval/builtin_words.h"

#include <array>

namespace qdelta::eval {

const std::vector<std::string>& builtin_adjectives() {
  static const std::vector<std::string> kWords{
      "amber",  "ancient", "austere", "blithe",  "brisk",  "broad",  "calm",   "candid", "clear",  "cold",
      "crisp",  "curious", "deep",    "distant", "dusty",  "eager",  "early",  "faint",  "famous", "fierce",
      "frugal", "gentle",  "golden",  "grand",   "hollow", "humble", "idle",   "jolly",  "keen",   "late",
      "level",  "lively",  "lonely",  "lucid",   "mellow", "modest", "narrow", "nimble", "noble",  "odd",
      "pale",   "patient", "plain",   "polite",  "proud",  "quaint", "quiet",  "rapid",  "rough",  "rustic",
      "secret", "silent",  "slender", "solemn",  "steady", "stout",  "tidy",   "timid",  "tired",  "upright",
      "vague",  "vivid",   "wary",    "wild",    "wise",   "wooden", "worn",   "young",  "zealous"};
  return kWords;
}

const std::vector<std::string>& builtin_nouns() {
  static const std::vector<std::string> kWords{
      "anchor", "apple",   "arch",    "basket", "beacon", "bell",    "bridge", "brook",  "button",  "cabin",
      "candle", "canyon",  "castle",  "cedar",  "chair",  "cliff",   "clock",  "cloud",  "compass", "copper",
      "corner", "cottage", "curtain", "desert", "door",   "feather", "field",  "flute",  "forest",  "garden",
      "gate",   "harbor",  "hill",    "island", "jacket", "kettle",  "ladder", "lamp",   "lantern", "lemon",
      "letter", "meadow",  "mill",    "mirror", "needle", "orchard", "paper",  "pebble", "pillow",  "pond",
      "quarry", "ribbon",  "river",   "saddle", "shore",  "shovel",  "spoon",  "stable", "statue",  "stone",
      "stove",  "table",   "tower",   "tunnel", "valley", "violin",  "wagon",  "willow", "window",  "winter"};
  return kWords;
}

std::string builtin_sentence(Random& random) {
  constexpr std::array kOpenings{"In those years",         "Before the harvest",     "As far as anyone could tell",
                                 "On most evenings",       "After the long rain",    "For reasons nobody wrote down",
                                 "Every second week",      "When the road was open", "Without much talk",
                                 "Towards the end of June"};
  constexpr std::array kPeople{"the carpenter",        "the schoolmaster", "my neighbour",     "a young surveyor",
                               "the miller",           "the ferryman",     "her older sister", "the clockmaker",
                               "a travelling painter", "the librarian"};
  constexpr std::array kActions{"walked past",   "wrote a letter about", "sold",     "repaired", "drew a map of",
                                "waited beside", "remembered",           "measured", "borrowed", "looked after"};
  constexpr std::array kEndings{"and said nothing of it",
                                "because the work had to be done",
                                "while the children were at school",
                                "which surprised the whole village",
                                "and then went home",
                                "though it was already dark",
                                "as if it were the first time",
                                "until the bells rang",
                                "for the price of a loaf of bread",
                                "and kept a careful record"};
  const auto pick = [&random](const auto& words) {
    return std::string(words[static_cast<std::size_t>(random.integer(0, static_cast<std::int64_t>(words.size()) - 1))]);
  };
  return pick(kOpenings) + " " + pick(kPeople) + " " + pick(kActions) + " the " + pick(builtin_adjectives()) + " " +
         pick(builtin_nouns()) + " " + pick(kEndings) + ".";
}

}  // namespace qdelta::eval
