/* The entry points of libbraid_sqlite, for programs that link or load it themselves. See docs/sqlite.md. */
#ifndef BRAID_SQLITE_H
#define BRAID_SQLITE_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Addresses of functions of one SQLite, 3.32 or newer, that stays loaded. */
typedef struct braid_sqlite_library {
  size_t size;              /* sizeof(braid_sqlite_library): later versions append functions */
  void *free;               /* sqlite3_free */
  void *libversion_number;  /* sqlite3_libversion_number */
  void *vfs_find;           /* sqlite3_vfs_find */
  void *vfs_register;       /* sqlite3_vfs_register */
  void *log;                /* sqlite3_log */
  void *uri_parameter;      /* sqlite3_uri_parameter */
  void *malloc64;           /* sqlite3_malloc64 */
  void *filename_database;  /* sqlite3_filename_database */
  void *auto_extension;     /* sqlite3_auto_extension */
  void *create_function;    /* sqlite3_create_function_v2 */
  void *context_connection; /* sqlite3_context_db_handle */
  void *value_text;         /* sqlite3_value_text */
  void *result_text;        /* sqlite3_result_text */
  void *result_error;       /* sqlite3_result_error */
  void *result_error_code;  /* sqlite3_result_error_code */
  void *file_control;       /* sqlite3_file_control */
  void *prepare;            /* sqlite3_prepare_v2 */
  void *step;               /* sqlite3_step */
  void *column_text;        /* sqlite3_column_text */
  void *finalize;           /* sqlite3_finalize */
} braid_sqlite_library;

/* Fills the structure in a file that includes sqlite3.h. */
#define BRAID_SQLITE_LIBRARY                                                                       \
  {sizeof(braid_sqlite_library),                                                                   \
   (void *)sqlite3_free, (void *)sqlite3_libversion_number,                                        \
   (void *)sqlite3_vfs_find, (void *)sqlite3_vfs_register,                                         \
   (void *)sqlite3_log, (void *)sqlite3_uri_parameter,                                             \
   (void *)sqlite3_malloc64, (void *)sqlite3_filename_database,                                    \
   (void *)sqlite3_auto_extension, (void *)sqlite3_create_function_v2,                             \
   (void *)sqlite3_context_db_handle, (void *)sqlite3_value_text,                                  \
   (void *)sqlite3_result_text, (void *)sqlite3_result_error,                                      \
   (void *)sqlite3_result_error_code, (void *)sqlite3_file_control,                                \
   (void *)sqlite3_prepare_v2, (void *)sqlite3_step,                                               \
   (void *)sqlite3_column_text, (void *)sqlite3_finalize}

/* Registers the VFS "braid", as the default one if is_default is not 0, and the SQL functions
 * braid_wait and braid_error of all connections that are opened afterwards. Returns SQLITE_OK; SQLITE_ERROR for a
 * SQLite older than 3.32; or SQLITE_MISUSE if the structure is smaller than that of the library. May be
 * called again, for example after sqlite3_initialize(). */
int braid_sqlite_register(const braid_sqlite_library *library, int is_default);

/* Waits until everything that was committed before the call, by any connection, is durable in a
 * database of this connection (a sqlite3 *): "main", the name of an attached one, or NULL for all of
 * them. With synchronous = FULL, only the mode "ticket" needs it. Returns SQLITE_OK, or
 * SQLITE_NOTFOUND: the database was not opened with the VFS "braid" (for NULL: none of them);
 * SQLITE_ERROR: the connection has no database of this name;
 * SQLITE_IOERR_FSYNC: the device failed, and a power failure may lose what was waited for;
 * SQLITE_MISUSE: the VFS is not registered. */
int braid_sqlite_wait(void *connection, const char *schema);

/* Why the extension refused the newest call in this thread that it refused, or NULL; forgets it. SQLite itself
 * has a code alone, such as SQLITE_CANTOPEN. The string lasts until the thread's next call of the function. */
const char *braid_sqlite_error(void);

/* Bytes that a -wal file has as SQLite sees it; -1 if the file is not one of this VFS. */
long long braid_sqlite_wal_size(const char *path);

/* For sqlite3_load_extension, which finds it by the library's name. */
int sqlite3_braidsqlite_init(void *connection, char **message, const void *api);

/* For sqlite3_auto_extension: registers the VFS when the next connection is opened, after SQLite has looked
 * up that connection's own VFS. */
int braid_sqlite_auto_init(void *connection, char **message, const void *api);

#ifdef __cplusplus
}
#endif

#endif
