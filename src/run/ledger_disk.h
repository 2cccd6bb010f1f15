/* SQLite's way to a disk that stands in for the system's (fsio_sys_use of base/fsio.h).
 *
 *     sqlite3_open_v2(path, &db, flags, ledger_disk())        path is under the disk's root */
#ifndef RUN_LEDGER_DISK_H
#define RUN_LEDGER_DISK_H

/* The name to open with; NULL when SQLite has no memory for it. One connection at a time: the locks
 * hold nobody back. */
const char *ledger_disk(void);

#endif
