/* A language model from C: reads a prompt, continues it with the most likely tokens, and shows that a state can be
 * forked.
 *
 *     cc model.c $(pkg-config --cflags --libs qdelta) && ./a.out MODEL_FOLDER [PROMPT]
 */
#include <qdelta/model.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_TOKENS = 4096, NEW_TOKENS = 32 };

static void check(qdelta_status status) {
  if (status == QDELTA_OK) return;
  fprintf(stderr, "%s: %s\n", qdelta_status_text(status), qdelta_last_error());
  exit(1);
}

static int32_t most_likely(const float* logits, int64_t vocabulary) {
  int64_t best = 0;
  for (int64_t i = 1; i < vocabulary; ++i) {
    if (logits[i] > logits[best]) best = i;
  }
  return (int32_t)best;
}

/* Reads tokens into a state, then chooses the next ones. */
static void generate(qdelta_model* model, qdelta_state* state, const int32_t* prompt, int64_t count, int32_t* out) {
  const int64_t vocabulary = qdelta_model_vocab_size(model);
  float* logits = malloc((size_t)vocabulary * sizeof(float));
  if (logits == NULL) exit(1);
  int64_t offsets[] = {0, count};
  check(qdelta_model_read(model, prompt, offsets, 1, &state, QDELTA_LAST_LOGITS, logits));
  offsets[1] = 1;
  for (int i = 0; i < NEW_TOKENS; ++i) {
    out[i] = most_likely(logits, vocabulary);
    check(qdelta_model_read(model, &out[i], offsets, 1, &state, QDELTA_LAST_LOGITS, logits));
  }
  free(logits);
}

int main(int argc, char** argv) {
  if (argc < 2) {
    fprintf(stderr, "usage: %s MODEL_FOLDER [PROMPT]\n", argv[0]);
    return 2;
  }
  qdelta_model* model = NULL;
  check(qdelta_model_open(argv[1], NULL, &model));
  printf("qdelta %s: %lld parameters\n", qdelta_version(), (long long)qdelta_model_parameter_count(model));

  int32_t prompt[MOST_TOKENS] = {1, 2, 3, 4, 5}; /* where there is no text to read: a model may have no tokenizer */
  int64_t count = 5;
  if (argc > 2) {
    check(qdelta_tokenize(model, argv[2], (int64_t)strlen(argv[2]), 1, prompt, MOST_TOKENS, &count));
    if (count > MOST_TOKENS || count == 0) {
      fprintf(stderr, "the prompt has %lld tokens, expected 1 to %d\n", (long long)count, MOST_TOKENS);
      return 1;
    }
  }

  /* All but the last token of the prompt, once; then two copies of that state go on by themselves. */
  qdelta_state *before = NULL, *fork = NULL;
  check(qdelta_state_new(model, &before));
  const int64_t offsets[] = {0, count - 1};
  if (count > 1) check(qdelta_model_read(model, prompt, offsets, 1, &before, QDELTA_NO_LOGITS, NULL));
  check(qdelta_state_clone(before, &fork));
  int32_t first[NEW_TOKENS], second[NEW_TOKENS];
  generate(model, before, prompt + count - 1, 1, first);
  generate(model, fork, prompt + count - 1, 1, second);
  const int same = memcmp(first, second, sizeof first) == 0;

  if (argc > 2) {
    char text[64 * NEW_TOKENS];
    int64_t bytes = 0;
    check(qdelta_detokenize(model, first, NEW_TOKENS, 0, text, (int64_t)sizeof text, &bytes));
    printf("%s%.*s\n", argv[2], (int)bytes, text);
  } else {
    for (int i = 0; i < NEW_TOKENS; ++i) printf("%d%c", first[i], i + 1 < NEW_TOKENS ? ' ' : '\n');
  }
  printf("%lld tokens read; both forks of the state went on %s\n", (long long)qdelta_state_tokens(fork),
         same ? "alike" : "differently");
  qdelta_state_free(before);
  qdelta_state_free(fork);
  qdelta_model_free(model);
  return same ? 0 : 1;
}
