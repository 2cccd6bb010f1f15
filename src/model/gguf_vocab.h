/* The tokenizer of a GGUF file as Hugging Face's texts.
 *
 *     struct gguf_vocab v;
 *     if (gguf_vocab_init(&v, g, rows, &e) == 0) {
 *         gguf_vocab_tokenizer(&v, &buf, &e);
 *         gguf_vocab_fini(&v);
 *     }
 *
 * A view of the open file: it must not outlive it. */
#ifndef MODEL_GGUF_VOCAB_H
#define MODEL_GGUF_VOCAB_H

#include <stdint.h>

#include "model/gguf.h"

struct buf;
struct err;
struct gguf_vocab_pre;

struct gguf_vocab {
    const struct gguf *g;
    const struct gguf_vocab_pre *pre; /* how text is split, from tokenizer.ggml.pre */
    const struct gguf_kv *tokens, *types, *merges;
    struct gguf_str *token;          /* of each id */
    int64_t bos, eos, eot, pad, unk; /* -1 where the file names none */
    int add_bos;                     /* 1: bos is put before a text */
};

/* Reads and checks the tokenizer's metadata; `rows` is the embedding's, the most tokens there can
 * be. Only byte-level BPE with a pre-tokenizer of smollm, qwen2, llama-bpe or gpt-2 is known;
 * others are refused by name. v is empty on failure. */
int gguf_vocab_init(struct gguf_vocab *v, const struct gguf *g, int64_t rows, struct err *e);
void gguf_vocab_fini(struct gguf_vocab *v);

/* Appends tokenizer.json. */
int gguf_vocab_tokenizer(const struct gguf_vocab *v, struct buf *b, struct err *e);
/* Appends tokenizer_config.json; chat_template may be NULL. */
int gguf_vocab_config(const struct gguf_vocab *v, int64_t max_length, const char *chat_template,
                      struct buf *b, struct err *e);

#endif
