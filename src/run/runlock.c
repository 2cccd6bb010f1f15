/* Owns RUN/lock: an advisory lock of the kernel on a file that says who holds it. The file stays;
 * removing it would let two processes lock two files of one name. */
#include "run/runlock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/fsio.h"
#include "base/mem.h"
#include "base/patience.h"
#include "base/status.h"

struct runlock {
    int fd;
};

static void runlock_name(int fd)
{
    char host[128] = "", when[40], text[256];
    time_t t = time(NULL);
    struct tm tm;
    int n;

    gethostname(host, sizeof host - 1);
    gmtime_r(&t, &tm);
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &tm);
    n = snprintf(text, sizeof text, "process %ld on %s since %s\n", (long)getpid(), host, when);
    if (fsio_sys_truncate(fd, 0) == 0 && fsio_sys_pwrite(fd, text, (size_t)n, 0) != n) {
        return; /* the lock holds without its name */
    }
}

static int runlock_try(const char *dir, struct runlock **out, struct err *e)
{
    char *path = fsio_join(dir, "lock"), who[256] = "another process";
    int fd = fsio_sys_open(path, O_RDWR | O_CREAT), rc = STATUS_OK;
    long n;

    if (fd < 0) {
        rc = ERR(e, errno == EACCES || errno == EROFS ? STATUS_INPUT : STATUS_IO,
                 "cannot open %s: %s", path, strerror(errno));
        goto out;
    }
    for (int i = 0; fsio_sys_lock(fd) != 0; i++) {
        if (errno != EWOULDBLOCK && errno != EINTR) {
            rc = ERR(e, STATUS_IO, "cannot lock %s: %s", path, strerror(errno));
            goto out;
        }
        if (i == 20) {
            n = fsio_sys_read(fd, who, sizeof who - 1, 0);
            who[n > 0 ? n : 0] = 0;
            who[strcspn(who, "\n")] = 0;
            rc = ERR(e, STATUS_INPUT, "%s is in use by %s: two runs cannot write one folder", dir,
                     who[0] ? who : "another process");
            goto out;
        }
        usleep(50000);
    }
    runlock_name(fd);
    *out = mem_alloc(sizeof **out);
    (*out)->fd = fd;
    fd = -1;
out:
    if (fd >= 0) {
        fsio_sys_close(fd);
    }
    mem_free(path);
    return rc;
}

int runlock_take(const char *dir, struct runlock **out, struct err *e)
{
    struct patience wait = {0};
    int rc;

    do {
        rc = runlock_try(dir, out, e);
    } while (patience_again(&wait, rc, dir, e));
    return rc;
}

void runlock_drop(struct runlock *l)
{
    if (l) {
        fsio_sys_close(l->fd);
        mem_free(l);
    }
}
