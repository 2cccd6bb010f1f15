/* Owns what goes into a report. Long files are cut in the middle, by lines, so that a report is
 * small enough to send. */
#include "run/bugreport.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/fsio.h"
#include "base/mem.h"
#include "base/status.h"
#include "base/thread.h"
#include "num/device.h"
#include "run/secret.h"
#include "run/tarfile.h"

#define BUGREPORT_MAX  ((size_t)64 << 20)
#define BUGREPORT_READ ((off_t)8 << 20) /* of the end of a file */
#define BUGREPORT_HEAD ((off_t)1 << 20) /* of its beginning */

struct bugreport {
    const char *run;
    char top[64]; /* folder in the archive */
    struct tarfile tar;
    int files;
};

static void bugreport_put(struct bugreport *r, const char *name, const char *text, size_t n)
{
    char full[100];
    struct buf b;

    buf_init(&b, n * 2 + 1024);
    secret_text(text, n, &b);
    snprintf(full, sizeof full, "%.40s/%.55s", r->top, name);
    tarfile_add(&r->tar, full, b.data, b.len);
    r->files++;
    buf_fini(&b);
}

/* Bytes [from, from + n) of a file; free with mem_free. */
static char *bugreport_bytes(FILE *f, off_t from, off_t n, size_t *got)
{
    char *text = mem_alloc((size_t)n + 1);

    *got = fseeko(f, from, SEEK_SET) == 0 ? fread(text, 1, (size_t)n, f) : 0;
    return text;
}

/* The first `head` and the last `tail` lines. */
static void bugreport_lines(struct bugreport *r, const char *path, const char *name, int head,
                            int tail)
{
    FILE *f = fopen(path, "re");
    struct stat st;
    char *text;
    size_t n, first = 0, last;
    struct buf b;
    int seen = 0;

    if (!f || fstat(fileno(f), &st) != 0 || !S_ISREG(st.st_mode)) {
        if (f) {
            fclose(f);
        }
        return;
    }
    buf_init(&b, BUGREPORT_MAX);
    text = bugreport_bytes(f, 0, st.st_size < BUGREPORT_HEAD ? st.st_size : BUGREPORT_HEAD, &n);
    while (first < n && seen < head) {
        seen += text[first++] == '\n';
    }
    buf_add(&b, text, first);
    mem_free(text);
    if ((off_t)first < st.st_size) {
        off_t from =
            st.st_size - BUGREPORT_READ > (off_t)first ? st.st_size - BUGREPORT_READ : (off_t)first;
        text = bugreport_bytes(f, from, st.st_size - from, &n);
        for (last = n, seen = 0; last > 0; last--) {
            if (text[last - 1] == '\n' && last < n && ++seen == tail) {
                break;
            }
        }
        if (from + (off_t)last > (off_t)first) {
            buf_printf(&b, "... %lld bytes are left out ...\n",
                       (long long)(from + (off_t)last - (off_t)first));
        }
        buf_add(&b, text + last, n - last);
        mem_free(text);
    }
    bugreport_put(r, name, b.data, b.len);
    buf_fini(&b);
    fclose(f);
}

static void bugreport_json(struct bugreport *r, const char *name)
{
    char *path = fsio_join(r->run, name), *text;
    json_t *j = json_load_file(path, 0, NULL);

    if (j) {
        secret_hide(j);
        text = json_dumps(j, JSON_INDENT(2));
        if (text) {
            bugreport_put(r, name, text, strlen(text));
        }
        free(text);
        json_decref(j);
    } else {
        bugreport_lines(r, path, name, 1000, 1000); /* as it is: that may be the bug */
    }
    mem_free(path);
}

static void bugreport_file(struct bugreport *r, const char *name, int head, int tail)
{
    char *path = fsio_join(r->run, name);
    bugreport_lines(r, path, name, head, tail);
    mem_free(path);
}

/* Logs of engines and of the router. */
static void bugreport_engines(struct bugreport *r)
{
    char *dir = fsio_join(r->run, "engines");
    DIR *d = opendir(dir);
    struct dirent *de;
    int n = 0;

    while (d && (de = readdir(d)) && n < 64) {
        size_t len = strlen(de->d_name);
        if (len > 4 && strcmp(de->d_name + len - 4, ".log") == 0) {
            char *path = fsio_join(dir, de->d_name), name[64];
            snprintf(name, sizeof name, "engines/%.40s", de->d_name);
            bugreport_lines(r, path, name, 50, 300);
            mem_free(path);
            n++;
        }
    }
    if (d) {
        closedir(d);
    }
    mem_free(dir);
}

/* Value of a line "key : value" of a file in /proc. */
static void bugreport_proc(struct buf *b, const char *path, const char *key, const char *as)
{
    FILE *f = fopen(path, "re");
    char line[512];

    while (f && fgets(line, sizeof line, f)) {
        char *colon = strpbrk(line, ":=");
        if (strncmp(line, key, strlen(key)) == 0 && colon) {
            buf_printf(b, "%s: %s", as, colon + 1 + strspn(colon + 1, " \t"));
            break;
        }
    }
    if (f) {
        fclose(f);
    }
}

static void bugreport_tree(struct buf *b, const char *dir, int depth)
{
    struct dirent **list = NULL;
    int n = scandir(dir, &list, NULL, alphasort);

    for (int i = 0; i < n; i++) {
        const char *name = list[i]->d_name;
        char *path = fsio_join(dir, name);
        struct stat st;
        if (name[0] != '.' && lstat(path, &st) == 0) {
            buf_printf(b, "%12lld %*s%s%s\n", (long long)st.st_size, 2 * depth, "", name,
                       S_ISDIR(st.st_mode) ? "/" : "");
            if (S_ISDIR(st.st_mode) && depth < 3) {
                bugreport_tree(b, path, depth + 1);
            }
        }
        mem_free(path);
        free(list[i]);
    }
    free(list);
}

extern char **environ;

static void bugreport_machine(struct bugreport *r)
{
    struct utsname u;
    struct statvfs v;
    struct buf b;

    buf_init(&b, 1 << 20);
    buf_printf(&b, "miles: %s\n", MILES_VERSION);
    if (uname(&u) == 0) {
        buf_printf(&b, "system: %s %s %s\n", u.sysname, u.release, u.machine);
    }
    bugreport_proc(&b, "/etc/os-release", "PRETTY_NAME", "distribution");
    bugreport_proc(&b, "/proc/cpuinfo", "model name", "processor");
    buf_printf(&b, "usable cores: %d\nbest instruction set: %s\n", pool_cores(), device_best_isa());
    bugreport_proc(&b, "/proc/meminfo", "MemTotal", "memory");
    bugreport_proc(&b, "/proc/meminfo", "MemAvailable", "memory available");
    if (statvfs(r->run, &v) == 0) {
        buf_printf(&b, "disk free: %.1f GiB\n", (double)v.f_bavail * (double)v.f_frsize / 0x1p30);
    }
    for (char **p = environ; *p; p++) {
        if (strncmp(*p, "MILES_", 6) == 0 || strncmp(*p, "CUDA_VISIBLE", 12) == 0 ||
            strncmp(*p, "SLURM_JOB", 9) == 0) {
            buf_printf(&b, "%s\n", *p);
        }
    }
    bugreport_put(r, "machine.txt", b.data, b.len);
    buf_clear(&b);
    bugreport_tree(&b, r->run, 0);
    bugreport_put(r, "files.txt", b.data, b.len);
    buf_fini(&b);
}

/* The last part of a path, without a slash at its end. */
static void bugreport_base(const char *run, char *out, size_t size)
{
    char *full = realpath(run, NULL);
    const char *name = full ? full : run, *slash = strrchr(name, '/');

    snprintf(out, size, "%s", slash && slash[1] ? slash + 1 : "run");
    free(full);
}

char *bugreport_name(const char *run)
{
    char base[48];
    struct buf b;

    bugreport_base(run, base, sizeof base);
    buf_init(&b, 256);
    buf_printf(&b, "miles-report-%s.tar.gz", base);
    return buf_take(&b, NULL);
}

int bugreport_write(const char *run, const char *path, int *files, struct err *e)
{
    struct bugreport r = {.run = run};
    char *config = fsio_join(run, "config.json"), *metrics = fsio_join(run, "metrics.jsonl"),
         base[48];
    int known = fsio_is_file(config) || fsio_is_file(metrics), rc;

    mem_free(config);
    mem_free(metrics);
    if (!known) {
        return ERR(e, STATUS_INPUT, "%s is not the folder of a run: it has no config.json", run);
    }
    bugreport_base(run, base, sizeof base);
    snprintf(r.top, sizeof r.top, "miles-report-%.45s", base);
    tarfile_init(&r.tar, BUGREPORT_MAX);
    bugreport_machine(&r);
    bugreport_json(&r, "config.json");
    bugreport_json(&r, "manifest.json");
    bugreport_file(&r, "log.txt", 200, 1000);
    bugreport_file(&r, "metrics.jsonl", 3, 200);
    bugreport_file(&r, "hashes.jsonl", 2, 20);
    bugreport_engines(&r);
    rc = tarfile_write(&r.tar, path, e);
    tarfile_fini(&r.tar);
    *files = r.files;
    return rc;
}
