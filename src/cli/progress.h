/* Progress of a run for a person: a bar that redraws itself on a terminal, plain lines elsewhere.
 * Pass progress_show to the loop as its progress callback. */
#ifndef CLI_PROGRESS_H
#define CLI_PROGRESS_H

struct loop_progress;

struct progress {
    int tty;
    int drawn; /* a bar stands on the last line */
    double start, last_draw;
};

void progress_open(struct progress *p);
void progress_close(struct progress *p);
void progress_show(void *arg, const struct loop_progress *p);

#endif
