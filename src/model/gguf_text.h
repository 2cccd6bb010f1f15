/* The texts of a Hugging Face folder, made from a GGUF file's metadata: config.json,
 * generation_config.json, tokenizer.json, tokenizer_config.json and the chat template.
 *
 *     struct gguf_text t;
 *     if (gguf_text_make(g, &t, &e) == 0) { puts(t.config); gguf_text_fini(&t); }
 *
 * Known are the architectures llama, qwen2 and qwen3, and byte-level BPE vocabularies whose
 * pre-tokenizer is smollm, qwen2, llama-bpe or gpt-2; anything else is refused by name. */
#ifndef MODEL_GGUF_TEXT_H
#define MODEL_GGUF_TEXT_H

struct err;
struct gguf;

struct gguf_text {
    char *config;
    char *generation_config;
    char *tokenizer;
    char *tokenizer_config;
    char *chat_template; /* NULL when the file has none */
};

int gguf_text_make(const struct gguf *g, struct gguf_text *t, struct err *e);
void gguf_text_fini(struct gguf_text *t);

/* Hugging Face's name of a GGUF tensor into `out`; STATUS_UNSUPPORTED for one that no dense layer
 * of ours has. */
int gguf_text_name(const char *name, char *out, int out_size, struct err *e);

#endif
