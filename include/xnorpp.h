/* xnorpp: runs packed one-bit networks (.xnor files).
 *
 *     xnorpp_error error;
 *     xnorpp_model *model;
 *     if (xnorpp_load("cifar10-resnet20.xnor", NULL, &model, &error)) return puts(error.message);
 *     xnorpp_guess best;
 *     xnorpp_classify(model, pixels, width, height, 3, 1, &best, NULL, &error);
 *     printf("%s %.3f\n", best.label, best.probability);
 *     xnorpp_free(model);
 *
 * Every function that can fail returns 0 or a code, and writes one sentence into `error`, which may be NULL. No exception
 * leaves the library. There is no global state: models are independent of each other. A model does not change after
 * loading, so several threads may use one at the same time (not in a build with -DXNORPP_THREADS=OFF).
 * Texts are UTF-8 and end with a zero; those of a model live as long as the model. docs/c-library.md is the guide. */
#ifndef XNORPP_H
#define XNORPP_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32) && defined(XNORPP_SHARED)
#if defined(XNORPP_BUILDS)
#define XNORPP_API __declspec(dllexport)
#else
#define XNORPP_API __declspec(dllimport)
#endif
#elif defined(__GNUC__) && !defined(_WIN32)
#define XNORPP_API __attribute__((visibility("default")))
#else
#define XNORPP_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct xnorpp_model xnorpp_model;

typedef enum xnorpp_status {
    XNORPP_OK = 0,
    XNORPP_ERROR_ARGUMENT = 1, /* an argument of the call is wrong */
    XNORPP_ERROR_FILE = 2,     /* the file cannot be opened or read */
    XNORPP_ERROR_MODEL = 3,    /* it is not a packed model, it is damaged, or this version cannot run it */
    XNORPP_ERROR_LIMIT = 4,    /* the model needs more than the limits in the options allow */
    XNORPP_ERROR_MEMORY = 5,   /* the system has no more memory */
    XNORPP_ERROR_THREADS = 6,  /* the system does not start the threads */
    XNORPP_ERROR_INTERNAL = 7  /* a defect of this library */
} xnorpp_status;

#define XNORPP_MESSAGE_BYTES 512
typedef struct xnorpp_error {
    xnorpp_status status;
    char message[XNORPP_MESSAGE_BYTES]; /* one sentence, no line break; empty after success */
} xnorpp_error;

/* How a model is loaded. Zero or NULL in a field stands for its default:
 *     xnorpp_options options = XNORPP_OPTIONS;
 *     options.threads = 4; */
typedef struct xnorpp_options {
    size_t struct_bytes;    /* sizeof(xnorpp_options): later versions add fields at the end */
    int threads;            /* that one call may use, 1 to 1024; by default as many as the work is worth, at most 8 */
    const char *isa;        /* "avx512", "avx2", "neon", "generic", ...; by default the best of this machine */
    uint64_t file_bytes;    /* the largest file that is read; by default 2^32 */
    uint64_t memory_bytes;  /* weights, constants and the working memory of one call; by default 2^31 */
    uint64_t multiply_adds; /* of one image, 32 one-bit products count as one; by default 2^38 */
} xnorpp_options;
#define XNORPP_OPTIONS {sizeof(xnorpp_options), 0, NULL, 0, 0, 0}

/* An input or an output: its name and its shape without the batch axis, channels first, as in the file. */
#define XNORPP_MOST_AXES 8
typedef struct xnorpp_value {
    const char *name;
    int axes;
    int64_t shape[XNORPP_MOST_AXES];
    size_t elements; /* the product of the shape */
} xnorpp_value;

typedef struct xnorpp_guess {
    size_t index;      /* of the class */
    float probability;
    const char *label; /* NULL where the file has no labels. From the file: escape it before it goes to a terminal. */
} xnorpp_guess;

/* The version of the library, "0.2.0". */
XNORPP_API const char *xnorpp_version(void);
/* Instruction sets that were built and that this machine has, in the order of choice: "avx2"; NULL after the last. */
XNORPP_API const char *xnorpp_isa(size_t index);

/* `options` may be NULL. On success *model is the caller's, to be ended by xnorpp_free; on failure it is NULL.
 * `path` is UTF-8. The bytes given to xnorpp_load_memory are not used after the call. */
XNORPP_API xnorpp_status xnorpp_load(const char *path, const xnorpp_options *options, xnorpp_model **model, xnorpp_error *error);
XNORPP_API xnorpp_status xnorpp_load_memory(const void *bytes, size_t size, const xnorpp_options *options, xnorpp_model **model,
                                            xnorpp_error *error);
/* A model that takes images of another size. Only for files that allow any size: xnorpp_takes_any_size. */
XNORPP_API xnorpp_status xnorpp_resized(const xnorpp_model *model, int64_t height, int64_t width, xnorpp_model **other,
                                        xnorpp_error *error);
XNORPP_API void xnorpp_free(xnorpp_model *model); /* NULL is allowed */

XNORPP_API xnorpp_value xnorpp_input(const xnorpp_model *model);
XNORPP_API int xnorpp_takes_any_size(const xnorpp_model *model);
XNORPP_API size_t xnorpp_output_count(const xnorpp_model *model);
/* elements is 0 where there is no output of that index. */
XNORPP_API xnorpp_value xnorpp_output(const xnorpp_model *model, size_t index);
XNORPP_API size_t xnorpp_label_count(const xnorpp_model *model); /* 0 where the file has none */
XNORPP_API const char *xnorpp_label(const xnorpp_model *model, size_t index); /* NULL where there is none */
XNORPP_API const char *xnorpp_model_isa(const xnorpp_model *model);
XNORPP_API int xnorpp_threads(const xnorpp_model *model);    /* that a call of one image uses */
XNORPP_API size_t xnorpp_memory(const xnorpp_model *model);  /* bytes of weights, constants and working memory */

/* Runs `count` images. Bytes are [height][width][channels] per image and are normalised inside; floats are [channels][height]
 * [width], already normalised. outputs[i] has room for count times the elements of output i. For a model with one output a
 * single pointer will do: float *outputs[] = {scores}. */
XNORPP_API xnorpp_status xnorpp_run_bytes(const xnorpp_model *model, const uint8_t *images, size_t count, float *const *outputs,
                                          xnorpp_error *error);
XNORPP_API xnorpp_status xnorpp_run_floats(const xnorpp_model *model, const float *images, size_t count, float *const *outputs,
                                           xnorpp_error *error);

/* Makes an input of an image of any size, as the file states it (resize, crop, colours): `prepared` has room for the input's
 * elements. pixels is [height][width][channels] with 1 (grey), 2 (grey, alpha), 3 (RGB) or 4 (RGBA) channels. */
XNORPP_API xnorpp_status xnorpp_prepare(const xnorpp_model *model, const uint8_t *pixels, size_t width, size_t height, size_t channels,
                                        uint8_t *prepared, xnorpp_error *error);
/* Softmax of one image's outputs, with the temperature that the file stores, in place. */
XNORPP_API xnorpp_status xnorpp_probabilities(const xnorpp_model *model, float *outputs, xnorpp_error *error);
/* The `top` likeliest classes of an image of any size, best first; *found (may be NULL) is how many there are. The image is
 * normalised to floats before it is run, as by `classify` in Python. */
XNORPP_API xnorpp_status xnorpp_classify(const xnorpp_model *model, const uint8_t *pixels, size_t width, size_t height, size_t channels,
                                         size_t top, xnorpp_guess *guesses, size_t *found, xnorpp_error *error);

#ifdef __cplusplus
}
#endif
#endif
