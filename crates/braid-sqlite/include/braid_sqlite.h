/* The entry points of libbraid_sqlite, for programs that link or load it themselves. See docs/sqlite.md. */
#ifndef BRAID_SQLITE_H
#define BRAID_SQLITE_H

#ifdef __cplusplus
extern "C" {
#endif

/* Addresses of functions of one SQLite, 3.32 or newer, that stays loaded. */
typedef struct braid_sqlite_library {
  void *free;              /* sqlite3_free */
  void *libversion_number; /* sqlite3_libversion_number */
  void *vfs_find;          /* sqlite3_vfs_find */
  void *vfs_register;      /* sqlite3_vfs_register */
  void *log;               /* sqlite3_log */
  void *uri_parameter;     /* sqlite3_uri_parameter */
  void *malloc64;          /* sqlite3_malloc64 */
  void *filename_database; /* sqlite3_filename_database */
} braid_sqlite_library;

/* Fills the structure in a file that includes sqlite3.h. */
#define BRAID_SQLITE_LIBRARY                                                                       \
  {(void *)sqlite3_free,         (void *)sqlite3_libversion_number, (void *)sqlite3_vfs_find,      \
   (void *)sqlite3_vfs_register, (void *)sqlite3_log,               (void *)sqlite3_uri_parameter, \
   (void *)sqlite3_malloc64,     (void *)sqlite3_filename_database}

/* Registers the VFS "braid", as the default one if is_default is not 0. Returns SQLITE_OK or
 * SQLITE_ERROR. May be called again, for example after sqlite3_initialize(). */
int braid_sqlite_register(const braid_sqlite_library *library, int is_default);

/* Bytes that a -wal file has as SQLite sees it; -1 if the file is not one of this VFS. */
long long braid_sqlite_wal_size(const char *path);

/* For sqlite3_load_extension, which finds it by the library's name. */
int sqlite3_braidsqlite_init(void *connection, char **message, const void *api);

/* For sqlite3_auto_extension. */
int braid_sqlite_auto_init(void *connection, char **message, const void *api);

#ifdef __cplusplus
}
#endif

#endif
