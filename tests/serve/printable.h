/* A small tokenizer for tests. */
#ifndef TESTS_SERVE_PRINTABLE_H
#define TESTS_SERVE_PRINTABLE_H

#include "base/buf.h"

/* Every token is a printable character; 0 is the space, 1 and 2 are <s> and </s>. */
static inline void printable_tokenizer(struct buf *b)
{
    buf_str(b, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[");
    for (int i = 1; i <= 2; i++) {
        buf_printf(b,
                   "%s{\"id\":%d,\"content\":\"%s\",\"single_word\":false,\"lstrip\":false,"
                   "\"rstrip\":false,\"normalized\":false,\"special\":true}",
                   i > 1 ? "," : "", i, i == 1 ? "<s>" : "</s>");
    }
    buf_str(b, "],\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\","
               "\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":false},"
               "\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\","
               "\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":true},"
               "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,"
               "\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,"
               "\"fuse_unk\":false,\"byte_fallback\":false,\"merges\":[],"
               "\"vocab\":{\"\xc4\xa0\":0,\"<s>\":1,\"</s>\":2");
    for (int c = '!'; c <= '~'; c++) {
        buf_printf(b, ",\"%s%c\":%d", c == '"' || c == '\\' ? "\\" : "", c, 3 + c - '!');
    }
    buf_str(b, "}}}");
}

#endif
