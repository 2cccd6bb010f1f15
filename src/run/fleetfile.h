/* The file of engines that come and go while a run goes on: an address a line, host:port or with
 * http:// or https:// in front. Empty lines and what stands behind # are for people.
 *
 *     fleetfile_open(path, port, &r, &e);        its engines are added to the port
 *     fleetfile_look(r, now);                    again and again: has it changed?
 *     fleetfile_add(r, "10.0.0.9:30000", &e);    writes the file and does what it says
 *     fleetfile_close(r);
 *
 * Whoever writes the file adds and takes out engines; a run that is started again finds them there.
 * A file that is not there is an empty one. One thread, that of the port. */
#ifndef RUN_FLEETFILE_H
#define RUN_FLEETFILE_H

struct err;
struct port_http;
struct fleetfile;

/* STATUS_INPUT names the line that is no address. */
int fleetfile_open(const char *path, struct port_http *port, struct fleetfile **out, struct err *e);
void fleetfile_close(struct fleetfile *r); /* engines stay in the port; NULL is fine */
/* At most once a second by `now`. What cannot be read is said, and all stays as it is. */
void fleetfile_look(struct fleetfile *r, double now);
int fleetfile_add(struct fleetfile *r, const char *addr, struct err *e);
/* STATUS_NOTFOUND: the file does not name it. */
int fleetfile_drop(struct fleetfile *r, const char *url, struct err *e);

#endif
