/* Sets of real numbers as answers give them: intervals, unions, points, inequalities.
 *
 *     struct mathdom d;
 *     if (mathdom_read(&d, &m, tree) == 1) ...      pieces in ascending order, merged
 *     mathdom_equal(&m, &d, &e)                             1, 0, -1 */
#ifndef REWARD_MATHDOM_H
#define REWARD_MATHDOM_H

struct mathread_node;
struct mathval;

enum { MATHDOM_MAX = 24 }; /* pieces */

struct mathdom {
    struct mathdom_piece {
        const struct mathread_node *lo, *hi; /* NULL: infinite */
        int lo_in, hi_in;                    /* the end belongs to it */
    } piece[MATHDOM_MAX];
    int n;
};

/* 1, or 0 when the tree is no such set, -1 when its ends cannot be put in order. */
int mathdom_read(struct mathdom *d, struct mathval *m, const struct mathread_node *x);
int mathdom_equal(struct mathval *m, const struct mathdom *a, const struct mathdom *b);

/* The name that an inequality is about, or NULL. */
const struct mathread_node *mathdom_subject(const struct mathread_node *x);

/* x, f(x), AB: something that has a name and no value of its own. */
int mathdom_is_name(const struct mathread_node *x);

#endif
