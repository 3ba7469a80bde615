#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "sqlite3.h"
#include "../crates/braid-sqlite/include/braid_sqlite.h"
/* Registers the extension in every process of the suite, after each sqlite3_initialize(). */
static long long (*wal_size)(const char*);
int braid_extra_init(const char *unused){
  const char *path = getenv("BRAID_SUITE_LIBRARY");
  braid_sqlite_library library = BRAID_SQLITE_LIBRARY;
  void *handle;
  int (*reg)(const braid_sqlite_library*, int);
  (void)unused;
  if( path==0 ) return SQLITE_OK;
  handle = dlopen(path, RTLD_NOW);
  reg = handle ? (int(*)(const braid_sqlite_library*, int))dlsym(handle, "braid_sqlite_register") : 0;
  if( reg==0 ){ fprintf(stderr, "%s\n", dlerror()); return SQLITE_ERROR; }
  wal_size = (long long(*)(const char*))dlsym(handle, "braid_sqlite_wal_size");
  return reg(&library, 1);
}
/* The suite's `file size test.db-wal` is that of the file which SQLite sees. */
int stat(const char *path, struct stat *to){
  static int (*real)(const char*, struct stat*);
  size_t n = strlen(path);
  int rc;
  if( real==0 ) real = (int(*)(const char*, struct stat*))dlsym(RTLD_NEXT, "stat");
  rc = real(path, to);
  if( rc==0 && wal_size && to->st_size>0 && n>4 && strcmp(path+n-4, "-wal")==0 ){
    long long size = wal_size(path);
    if( size>=0 ) to->st_size = size;
  }
  return rc;
}
#ifdef FUZZCHECK
/* fuzzcheck expects no memory in use before a test, and none after it. SQLite's list of extensions, in which
** this one is, stays. */
sqlite3_int64 __real_sqlite3_memory_used(void);
sqlite3_int64 __wrap_sqlite3_memory_used(void){
  static sqlite3_int64 before = -1;
  if( before<0 ) before = __real_sqlite3_memory_used();
  return __real_sqlite3_memory_used() - before;
}
#endif
