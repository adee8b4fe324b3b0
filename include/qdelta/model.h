/* Language models for C: open a model folder, feed it tokens, keep its recurrent states.
 *
 *     qdelta_model* model;
 *     qdelta_state* state;
 *     qdelta_model_open("run/checkpoints/step-00001000", NULL, &model);
 *     qdelta_state_new(model, &state);
 *     qdelta_model_read(model, tokens, offsets, 1, &state, QDELTA_LAST_LOGITS, logits);
 *
 * A state is what a prefix leaves behind, of the same size whatever its length. Tokens and states go in, logits come
 * out and the states have moved on. Everything here is in the memory of the CPU, whatever device the model computes on.
 *
 * Errors are as in qdelta.h: every function that can fail returns a status, and qdelta_last_error() says what was
 * wrong. A model may be used from several threads; its calls then run one after the other. A state belongs to one call
 * at a time.
 */
#ifndef QDELTA_MODEL_H_
#define QDELTA_MODEL_H_

#include <qdelta/qdelta.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct qdelta_model qdelta_model;
typedef struct qdelta_state qdelta_state;

/* Set it up with qdelta_model_options_init(&options), then change what you need. */
typedef struct qdelta_model_options {
  uint32_t struct_size;    /* sizeof(qdelta_model_options) */
  int32_t threads;         /* of the CPU; 0: all cores */
  DLDevice device;         /* {kDLCPU, 0}, or {kDLCUDA, number of the GPU} */
  int32_t f32_activations; /* 0: bfloat16 on a GPU; 1: float32 there too. The CPU always has float32. */
} qdelta_model_options;

QDELTA_API void qdelta_model_options_init_sized(qdelta_model_options* options, uint32_t struct_size);
#define qdelta_model_options_init(options) \
  qdelta_model_options_init_sized((options), (uint32_t)sizeof(qdelta_model_options))

/* Opens a Hugging Face folder: config.json, model.safetensors (or its shards) and, to tokenise, the tokenizer's files.
 * `options` may be NULL: the CPU, all cores. */
QDELTA_API qdelta_status qdelta_model_open(const char* folder, const qdelta_model_options* options,
                                           qdelta_model** model);
/* States outlive it. NULL is allowed. */
QDELTA_API void qdelta_model_free(qdelta_model* model);

QDELTA_API int64_t qdelta_model_vocab_size(const qdelta_model* model);
QDELTA_API int64_t qdelta_model_parameter_count(const qdelta_model* model);
/* The model's config.json, as the engine would write it. Valid as long as the model. */
QDELTA_API const char* qdelta_model_config(const qdelta_model* model);

/* A state with nothing read. */
QDELTA_API qdelta_status qdelta_state_new(qdelta_model* model, qdelta_state** state);
QDELTA_API qdelta_status qdelta_state_clone(const qdelta_state* state, qdelta_state** copy);
/* The format of `qdelta generate --save-state`. */
QDELTA_API qdelta_status qdelta_state_save(const qdelta_state* state, const char* path);
/* Refuses states of another model, or of other weights of this one. */
QDELTA_API qdelta_status qdelta_state_load(qdelta_model* model, const char* path, qdelta_state** state);
QDELTA_API void qdelta_state_free(qdelta_state* state);
/* How many tokens it has read. */
QDELTA_API int64_t qdelta_state_tokens(const qdelta_state* state);

typedef enum qdelta_logits {
  QDELTA_NO_LOGITS = 0,   /* just move the states on */
  QDELTA_LAST_LOGITS = 1, /* [sequences, vocabulary]: after each sequence's last token */
  QDELTA_ALL_LOGITS = 2   /* [tokens, vocabulary] */
} qdelta_logits;

/* Reads sequences[n] = tokens[offsets[n] .. offsets[n + 1]) into states[n], all of them as one batch. Sequences are not
 * empty; no state appears twice. `states` may be NULL: each sequence starts from nothing and leaves nothing. After a
 * failure the states are as before. */
QDELTA_API qdelta_status qdelta_model_read(qdelta_model* model, const int32_t* tokens, const int64_t* offsets,
                                           int64_t sequences, qdelta_state* const* states, qdelta_logits which,
                                           float* logits);

/* The ids of `bytes` bytes of UTF-8, with what the tokenizer's own files put around a text where `add_special` is 1.
 * Writes at most `capacity` ids; `count` receives how many there are. */
QDELTA_API qdelta_status qdelta_tokenize(qdelta_model* model, const char* text, int64_t bytes, int32_t add_special,
                                         int32_t* ids, int64_t capacity, int64_t* count);
/* The text of ids, in UTF-8 without a zero at the end. Writes at most `capacity` bytes; `bytes` receives how many there
 * are. Special tokens give nothing unless `keep_special` is 1. */
QDELTA_API qdelta_status qdelta_detokenize(qdelta_model* model, const int32_t* ids, int64_t count, int32_t keep_special,
                                           char* text, int64_t capacity, int64_t* bytes);
/* The tokenizer's id that starts, ends or pads a text; -1: it has none. */
typedef enum qdelta_special { QDELTA_BOS = 0, QDELTA_EOS = 1, QDELTA_PAD = 2 } qdelta_special;
QDELTA_API qdelta_status qdelta_special_token(qdelta_model* model, qdelta_special which, int32_t* id);

#ifdef __cplusplus
}
#endif

#endif /* QDELTA_MODEL_H_ */
