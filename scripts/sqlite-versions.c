/* A program that links libbraid_sqlite and one version of SQLite: registration, waits, the guards, a
 * killed process, two copies of the library, and the same statements with and without the extension.
 * Usage: sqlite-versions DIRECTORY LIBRARY COPY, where COPY is a copy of the library. With TOO_OLD, for
 * versions that the extension refuses. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "sqlite3.h"
#include "../crates/braid-sqlite/include/braid_sqlite.h"

#define CHECK(condition)                                                                           \
  do {                                                                                             \
    if( !(condition) ){                                                                            \
      fprintf(stderr, "SQLite %s: line %d: %s\n", sqlite3_libversion(), __LINE__, #condition);    \
      exit(1);                                                                                     \
    }                                                                                              \
  } while( 0 )

/* Loads a library with SQLite's loader; returns its code. */
static int load(const char *library, char **message){
  sqlite3 *db;
  int rc;
  CHECK( sqlite3_open(":memory:", &db)==SQLITE_OK );
  CHECK( sqlite3_enable_load_extension(db, 1)==SQLITE_OK );
  rc = sqlite3_load_extension(db, library, "sqlite3_braidsqlite_init", message);
  sqlite3_close(db);
  return rc;
}

#ifdef TOO_OLD

int main(int argc, char **argv){
  char *message = 0;
  CHECK( argc==4 );
  CHECK( load(argv[2], &message)==SQLITE_ERROR );
  CHECK( message && strstr(message, "it needs 3.32.0 or newer") );
  printf("SQLite %s: refused (%s)\n", sqlite3_libversion(), message);
  return 0;
}

#else

static char path[1000], log_folder[1000];

static sqlite3 *open_with(const char *vfs){
  sqlite3 *db;
  char uri[2200];
  int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_URI;
  snprintf(uri, sizeof uri, "file:%s?braid_log=%s", path, log_folder);
  CHECK( sqlite3_open_v2(uri, &db, flags, vfs)==SQLITE_OK );
  sqlite3_busy_timeout(db, 10000);
  return db;
}

static void run(sqlite3 *db, const char *sql){
  char *message = 0;
  if( sqlite3_exec(db, sql, 0, 0, &message)!=SQLITE_OK ){
    fprintf(stderr, "%s: %s\n", sql, message);
    CHECK( 0 );
  }
}

/* The first column of the first row, as text of at most 9,999 bytes. */
static const char *text(sqlite3 *db, const char *sql){
  static char found[10000];
  sqlite3_stmt *statement;
  int rc;
  if( sqlite3_prepare_v2(db, sql, -1, &statement, 0)!=SQLITE_OK
   || ((rc = sqlite3_step(statement))!=SQLITE_ROW && rc!=SQLITE_DONE) ){
    fprintf(stderr, "%s: %s\n", sql, sqlite3_errmsg(db));
    CHECK( 0 );
  }
  snprintf(found, sizeof found, "%s", rc==SQLITE_ROW ? (const char*)sqlite3_column_text(statement, 0) : "");
  sqlite3_finalize(statement);
  return found;
}

static long long number(sqlite3 *db, const char *sql){ return atoll(text(db, sql)); }

/* A field of PRAGMA braid_stats. */
static long long stat_of(sqlite3 *db, const char *name){
  const char *field = strstr(text(db, "PRAGMA braid_stats"), name);
  CHECK( field );
  return atoll(field + strlen(name));
}

static void registration(void){
  braid_sqlite_library library = BRAID_SQLITE_LIBRARY;
  sqlite3 *db;
  CHECK( sqlite3_open(":memory:", &db)==SQLITE_OK );
  CHECK( braid_sqlite_wait(db, 0)==SQLITE_MISUSE );
  library.size -= sizeof(void*);
  CHECK( braid_sqlite_register(&library, 0)==SQLITE_MISUSE );
  CHECK( sqlite3_vfs_find("braid")==0 );
  library.size += 2 * sizeof(void*);
  CHECK( braid_sqlite_register(&library, 0)==SQLITE_OK );
  CHECK( braid_sqlite_register(&library, 0)==SQLITE_OK );
  CHECK( sqlite3_vfs_find("braid")!=0 );
  CHECK( braid_sqlite_wait(db, 0)==SQLITE_NOTFOUND );
  sqlite3_close(db);
}

static void waits(void){
  sqlite3 *db = open_with("braid");
  CHECK( strcmp(text(db, "PRAGMA journal_mode = WAL"), "wal")==0 );
  run(db, "CREATE TABLE t (a INTEGER PRIMARY KEY, b)");
  run(db, "PRAGMA braid_mode = ticket; PRAGMA synchronous = FULL; INSERT INTO t (b) VALUES ('waits')");
  CHECK( stat_of(db, " durable_bytes=") < stat_of(db, " log_bytes=") );
  CHECK( braid_sqlite_wait(db, "other")==SQLITE_ERROR );
  run(db, "ATTACH ':memory:' AS plain");
  CHECK( braid_sqlite_wait(db, "plain")==SQLITE_NOTFOUND );
  CHECK( stat_of(db, " durable_bytes=") < stat_of(db, " log_bytes=") );
  CHECK( braid_sqlite_wait(db, "main")==SQLITE_OK );
  CHECK( stat_of(db, " durable_bytes=") == stat_of(db, " log_bytes=") );
  run(db, "INSERT INTO t (b) VALUES ('waits')");
  CHECK( braid_sqlite_wait(db, 0)==SQLITE_OK );
  CHECK( stat_of(db, " durable_bytes=") == stat_of(db, " log_bytes=") );
  run(db, "INSERT INTO t (b) VALUES ('waits'); SELECT braid_wait()");
  CHECK( stat_of(db, " durable_bytes=") == stat_of(db, " log_bytes=") );
  CHECK( sqlite3_close(db)==SQLITE_OK );
}

/* A process that is killed loses nothing, and SQLite alone does not open the database. */
static void kill_process(void){
  int pipes[2], status;
  char byte;
  pid_t child;
  sqlite3 *db;
  CHECK( pipe(pipes)==0 );
  child = fork();
  CHECK( child>=0 );
  if( child==0 ){
    db = open_with("braid");
    run(db, "INSERT INTO t (b) VALUES (randomblob(3000)); BEGIN; DELETE FROM t WHERE a <= 2");
    CHECK( write(pipes[1], "x", 1)==1 );
    for(;;) pause();
  }
  CHECK( read(pipes[0], &byte, 1)==1 );
  /* While the other process has the database open, and after it has ended. */
  db = open_with("unix");
  CHECK( sqlite3_exec(db, "SELECT * FROM t", 0, 0, 0)!=SQLITE_OK );
  CHECK( sqlite3_exec(db, "INSERT INTO t (b) VALUES (1)", 0, 0, 0)!=SQLITE_OK );
  sqlite3_close(db);
  kill(child, SIGKILL);
  CHECK( waitpid(child, &status, 0)==child && WIFSIGNALED(status) );
  db = open_with("unix");
  CHECK( sqlite3_exec(db, "SELECT * FROM t", 0, 0, 0)!=SQLITE_OK );
  CHECK( sqlite3_exec(db, "INSERT INTO t (b) VALUES (1)", 0, 0, 0)!=SQLITE_OK );
  sqlite3_close(db);
  db = open_with("braid");
  CHECK( number(db, "SELECT count(*) FROM t")==4 );
  CHECK( strcmp(text(db, "PRAGMA integrity_check"), "ok")==0 );
  CHECK( sqlite3_close(db)==SQLITE_OK );
  close(pipes[0]);
  close(pipes[1]);
}

/* Connections of two copies of the library, each with a log of its own in memory. */
static void two_copies(const char *copy){
  sqlite3 *first = open_with("braid"), *second;
  char *message = 0;
  int i;
  run(first, "INSERT INTO t (b) VALUES (0)");
  if( load(copy, &message)!=SQLITE_OK ){
    fprintf(stderr, "%s\n", message);
    CHECK( 0 );
  }
  second = open_with("braid");
  for(i=0; i<200; i++){
    sqlite3 *writer = i % 3 ? first : second, *reader = i % 3 ? second : first;
    long long before = number(reader, "SELECT sum(b) FROM t WHERE typeof(b) = 'integer'");
    run(writer, "UPDATE t SET b = b + 1 WHERE typeof(b) = 'integer'");
    CHECK( number(reader, "SELECT sum(b) FROM t WHERE typeof(b) = 'integer'")==before + 1 );
    if( i==100 ) run(writer, "PRAGMA wal_checkpoint(RESTART)");
  }
  CHECK( sqlite3_close(first)==SQLITE_OK );
  CHECK( strcmp(text(second, "PRAGMA integrity_check"), "ok")==0 );
  CHECK( sqlite3_close(second)==SQLITE_OK );
}

/* Without a checkpoint at its end, the database is guarded after it is closed. */
static void no_checkpoint(void){
  sqlite3 *db = open_with("braid");
  int on;
  CHECK( sqlite3_db_config(db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, &on)==SQLITE_OK && on );
  run(db, "INSERT INTO t (b) VALUES ('kept'); DELETE FROM t WHERE b = 'kept'");
  CHECK( sqlite3_close(db)==SQLITE_OK );
  db = open_with("unix");
  CHECK( sqlite3_exec(db, "SELECT * FROM t", 0, 0, 0)!=SQLITE_OK );
  sqlite3_close(db);
}

/* The same statements in a database without a log. */
static void comparison(void){
  static const char *checks[] = {
    "SELECT group_concat(a || quote(b)) FROM (SELECT a, b FROM u ORDER BY a)",
    "SELECT count(*) || '-' || total(length(b)) FROM u",
  };
  sqlite3 *dbs[2];
  int i, k, depth = 0;
  CHECK( sqlite3_open(":memory:", &dbs[0])==SQLITE_OK );
  dbs[1] = open_with("braid");
  run(dbs[1], "PRAGMA wal_autocheckpoint = 50; PRAGMA cache_size = 10");
  for(k=0; k<2; k++) run(dbs[k], "CREATE TABLE u (a INTEGER PRIMARY KEY, b); CREATE INDEX v ON u (b)");
  srand(1);
  for(i=0; i<3000; i++){
    char sql[200];
    int key = rand() % 300, value = rand();
    switch( rand() % 12 ){
      case 0: snprintf(sql, sizeof sql, "DELETE FROM u WHERE a = %d", key); break;
      case 1: snprintf(sql, sizeof sql, "UPDATE u SET b = 'x' || %d WHERE a > %d", value, key + 250); break;
      case 2: snprintf(sql, sizeof sql, "%s", depth ? "COMMIT" : "BEGIN"); depth = !depth; break;
      case 3: snprintf(sql, sizeof sql, "%s", depth ? "ROLLBACK" : "BEGIN"); depth = !depth; break;
      case 4: snprintf(sql, sizeof sql, "%s", depth ? "SAVEPOINT s" : "SELECT 1"); break;
      case 5: snprintf(sql, sizeof sql, "REPLACE INTO u VALUES (%d, hex(zeroblob(%d)))", key, value % 4000); break;
      default: snprintf(sql, sizeof sql, "REPLACE INTO u VALUES (%d, 'text' || %d)", key, value);
    }
    for(k=0; k<2; k++) run(dbs[k], sql);
    if( i % 100==0 ){
      unsigned c;
      for(c=0; c<sizeof checks / sizeof *checks; c++){
        char expected[10000];
        strcpy(expected, text(dbs[0], checks[c]));
        CHECK( strcmp(expected, text(dbs[1], checks[c]))==0 );
      }
    }
  }
  if( depth ) for(k=0; k<2; k++) run(dbs[k], "COMMIT");
  run(dbs[1], "VACUUM; PRAGMA wal_checkpoint(TRUNCATE)");
  CHECK( strcmp(text(dbs[1], "PRAGMA integrity_check"), "ok")==0 );
  sqlite3_close(dbs[0]);
  CHECK( sqlite3_close(dbs[1])==SQLITE_OK );
}

int main(int argc, char **argv){
  sqlite3 *db;
  CHECK( argc==4 );
  snprintf(path, sizeof path, "%s/app.db", argv[1]);
  snprintf(log_folder, sizeof log_folder, "%s", argv[1]);
  registration();
  waits();
  kill_process();
  no_checkpoint();
  comparison();
  two_copies(argv[3]);
  /* After the last connection is closed the file is plain. */
  db = open_with("unix");
  CHECK( strcmp(text(db, "PRAGMA integrity_check"), "ok")==0 );
  CHECK( number(db, "SELECT count(*) FROM t")==5 );
  sqlite3_close(db);
  printf("SQLite %s: works\n", sqlite3_libversion());
  return 0;
}

#endif
