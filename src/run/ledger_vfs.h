/* SQLite's way to the disk with the faults of base/fsio.h in it, for tests.
 *
 *     sqlite3_open_v2(path, &db, flags, ledger_vfs())       NULL: the system's own */
#ifndef RUN_LEDGER_VFS_H
#define RUN_LEDGER_VFS_H

/* The name to open with: a layer that counts writes and syncs and has some of them fail, once
 * fsio_fail_at was called; NULL before. */
const char *ledger_vfs(void);

#endif
