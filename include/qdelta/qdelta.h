/* qdelta: delta-rule linear attention for C, and for anything that can call C.
 *
 * Per head, with a state S[K][V] and every token's q, k (width K), v (width V) and gates g, beta, lambda:
 *
 *     S <- exp(g) S
 *     r <- write v - erase (k + mix q)^T S
 *     S <- S + k r^T
 *     o <- scale q^T S
 *
 * where the rule turns the gates into (erase, mix, write). For Q-Delta erase = write = beta and mix = lambda.
 *
 * Tensors are DLPack's DLTensor: NumPy, PyTorch, JAX and CuPy hand theirs over without copying. They may have any
 * strides unless said otherwise. Values and gates are float32 or bfloat16, states always float32. Memory stays the
 * caller's; outputs are allocated by the caller and overwritten. All functions may be called from any thread at once;
 * each returns a status, and after a failure qdelta_last_error() says on the same thread what was wrong.
 *
 * On a GPU (options.device) all tensors but cu_seqlens lie in the memory of that GPU. A call is queued on
 * options.stream and returns: it neither allocates nor waits, so that it can be captured in a CUDA graph. Scratch
 * memory is the caller's: qdelta_forward_workspace and qdelta_backward_workspace say how much of it. There the last
 * axis of q, k, v, o, d_o, the states and their gradients is contiguous, K is at most 256, and the form is that of
 * chunks of 64 tokens.
 *
 * Symbols: B batch, T tokens, H heads of q and k, HV heads of v (a multiple of H), K, V widths, N sequences.
 */
#ifndef QDELTA_QDELTA_H_
#define QDELTA_QDELTA_H_

#include <dlpack/dlpack.h>
#include <stdint.h>

#if defined(__GNUC__)
#define QDELTA_API __attribute__((visibility("default")))
#else
#define QDELTA_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef enum qdelta_status {
  QDELTA_OK = 0,
  QDELTA_INVALID_ARGUMENT = 1, /* the call can never work */
  QDELTA_UNSUPPORTED = 2,      /* valid, but not on this build or machine */
  QDELTA_OUT_OF_MEMORY = 3,
  QDELTA_IO = 4,
  QDELTA_CORRUPT = 5,
  QDELTA_INTERNAL = 6 /* a bug: please report it */
} qdelta_status;

typedef enum qdelta_rule {
  QDELTA_LINEAR = 0,
  QDELTA_RETNET = 1,
  QDELTA_MAMBA2 = 2,
  QDELTA_LONGHORN = 3,
  QDELTA_DELTA = 4,
  QDELTA_GATED_DELTA = 5,
  QDELTA_Q_DELTA = 6
} qdelta_rule;

typedef enum qdelta_form {
  QDELTA_CHUNK = 0,     /* matrix products over chunks of tokens */
  QDELTA_RECURRENT = 1, /* blocks of four tokens; the backward token by token */
  QDELTA_ORACLE = 2,    /* token by token in float64: slow, for checking */
  QDELTA_AUTO = 3 /* what is fastest: QDELTA_RECURRENT for a forward without chunk_states, chunk length and products in
                     bfloat16, else QDELTA_CHUNK */
} qdelta_form;

/* Set it up with qdelta_options_init(&options), then change what you need. */
typedef struct qdelta_options {
  uint32_t struct_size; /* sizeof(qdelta_options), so that later versions can add fields */
  qdelta_rule rule;     /* QDELTA_Q_DELTA */
  qdelta_form form;     /* QDELTA_AUTO */
  float scale;          /* of the output; 0, the default, stands for K^-1/2 */
  int32_t qk_l2norm;    /* 0; 1: q and k are divided by sqrt(sum of squares + 1e-6) first */
  int32_t chunk;        /* tokens of a chunk: 16, 32, 64 or 128; 0: 64, where chunks are used */
  int32_t threads;      /* 0: all cores. The result does not depend on it, to the bit. */
  int32_t f32_products; /* 0; 1: never round the operands of matrix products to bfloat16, even where q, k, v are */
  /* Since 0.2. */
  DLDevice device;         /* where the tensors are: {kDLCPU, 0}, or {kDLCUDA, number of the GPU} */
  void* stream;            /* the cudaStream_t that a call on a GPU is queued on; NULL: the default stream */
  void* workspace;         /* scratch memory on the device, from a multiple of 64 bytes on; NULL: on the CPU a thread's
                              own, on a GPU none */
  uint64_t workspace_size; /* in bytes */
  void* saved;             /* what a forward saves for its backward beside chunk_states (qdelta_saved_size bytes on the
                              device, from a multiple of 64 on); NULL: nothing is saved, or computed again */
  uint64_t saved_size;
} qdelta_options;

/* A struct_size other than the library's is accepted, as long as fields that the library does not know are zero. */
QDELTA_API void qdelta_options_init_sized(qdelta_options* options, uint32_t struct_size);
/* As programs that were compiled with 0.1 call it: sets up the fields that 0.1 had. */
QDELTA_API void qdelta_options_init(qdelta_options* options);
#define qdelta_options_init(options) qdelta_options_init_sized((options), (uint32_t)sizeof(qdelta_options))

/* NULL stands for "not given", where that is allowed. */
typedef struct qdelta_inputs {
  const DLTensor* q;          /* [B, T, H, K] */
  const DLTensor* k;          /* [B, T, H, K] */
  const DLTensor* v;          /* [B, T, HV, V] */
  const DLTensor* g;          /* [B, T, HV]  log of the decay; always applied */
  const DLTensor* beta;       /* [B, T, HV]  NULL for linear and retnet */
  const DLTensor* lambda;     /* [B, T, HV]  NULL for all but q_delta */
  const DLTensor* h0;         /* [N, HV, K, V] state on entry; NULL: zeros */
  const DLTensor* cu_seqlens; /* int32 or int64 [N + 1], always in the memory of the CPU: offsets of sequences packed
                                 along T (then B is 1); NULL: N = B */
} qdelta_inputs;

typedef struct qdelta_outputs {
  DLTensor* o;            /* [B, T, HV, V] */
  DLTensor* ht;           /* [N, HV, K, V] state on exit, or NULL */
  DLTensor* chunk_states; /* [qdelta_chunk_count(...), HV, K, V] saved for the backward, or NULL; on a GPU float32 or
                             bfloat16 */
} qdelta_outputs;

/* o and ht from the inputs. */
QDELTA_API qdelta_status qdelta_forward(const qdelta_options* options, const qdelta_inputs* in,
                                        const qdelta_outputs* out);

typedef struct qdelta_output_gradients {
  const DLTensor* d_o;          /* [B, T, HV, V] */
  const DLTensor* d_ht;         /* [N, HV, K, V], or NULL: zeros */
  const DLTensor* chunk_states; /* as qdelta_forward left them with the same options, or NULL: recomputed */
} qdelta_output_gradients;

typedef struct qdelta_input_gradients {
  DLTensor* dq; /* shaped like the inputs */
  DLTensor* dk;
  DLTensor* dv;
  DLTensor* dg;
  DLTensor* dbeta;   /* may be NULL */
  DLTensor* dlambda; /* may be NULL */
  DLTensor* dh0;     /* may be NULL */
} qdelta_input_gradients;

/* Gradients in every input of a loss whose gradients in o and ht are given. An input the rule does not read gets zeros.
 */
QDELTA_API qdelta_status qdelta_backward(const qdelta_options* options, const qdelta_inputs* in,
                                         const qdelta_output_gradients* d_out, const qdelta_input_gradients* d_in);

/* One token for each of R rows. */
typedef struct qdelta_step_arguments {
  const DLTensor* q;      /* [R, H, K] */
  const DLTensor* k;      /* [R, H, K] */
  const DLTensor* v;      /* [R, HV, V] */
  const DLTensor* g;      /* [R, HV] */
  const DLTensor* beta;   /* [R, HV] or NULL */
  const DLTensor* lambda; /* [R, HV] or NULL */
  DLTensor* states;       /* [P, HV, K, V] a pool of states, updated in place; rows of V contiguous */
  const DLTensor* index;  /* int32 or int64 [R]: the state of each row, no state twice; NULL: row r has state r. On a
                             GPU it is not read by the CPU: a row whose index lies outside the pool gets zeros */
  DLTensor* o;            /* [R, HV, V] */
} qdelta_step_arguments;

/* Advances the indexed states by one token each, in place, and leaves all others alone. Needs no workspace. */
QDELTA_API qdelta_status qdelta_step(const qdelta_options* options, const qdelta_step_arguments* arguments);

/* The bytes that these very calls need in options.workspace; 0 is possible. They depend on shapes, types, cu_seqlens,
 * options and which tensors are given, never on values. The tensors are not touched. */
QDELTA_API qdelta_status qdelta_forward_workspace(const qdelta_options* options, const qdelta_inputs* in,
                                                  const qdelta_outputs* out, uint64_t* bytes);
QDELTA_API qdelta_status qdelta_backward_workspace(const qdelta_options* options, const qdelta_inputs* in,
                                                   const qdelta_output_gradients* d_out,
                                                   const qdelta_input_gradients* d_in, uint64_t* bytes);
/* The bytes of options.saved; 0 on the CPU. The backward must get what a forward on the same inputs has saved. */
QDELTA_API qdelta_status qdelta_saved_size(const qdelta_options* options, const qdelta_inputs* in, uint64_t* bytes);

/* The first extent of chunk_states for these inputs, or -1 (see qdelta_last_error) where they are malformed. */
QDELTA_API int64_t qdelta_chunk_count(const qdelta_options* options, const qdelta_inputs* in);

/* "q_delta" and so on; NULL for a value that is no rule. */
QDELTA_API const char* qdelta_rule_name(qdelta_rule rule);
/* Gives QDELTA_INVALID_ARGUMENT for a name that is no rule. */
QDELTA_API qdelta_status qdelta_rule_from_name(const char* name, qdelta_rule* rule);

/* "0.2.0" */
QDELTA_API const char* qdelta_version(void);
/* "invalid argument" and so on. */
QDELTA_API const char* qdelta_status_text(qdelta_status status);
/* What the last failed call on this thread said; "" if none failed. Valid until the thread's next failure. */
QDELTA_API const char* qdelta_last_error(void);

#ifdef __cplusplus
}
#endif

#endif /* QDELTA_QDELTA_H_ */
