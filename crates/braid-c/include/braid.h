// Braid, an embeddable transactional storage engine: the C interface. docs/c-api.md explains it.
//
// Made from the sources of the crate braid-c by cbindgen; change those, then run
// BRAID_UPDATE_HEADER=1 cargo test -p braid-c --test header

#ifndef BRAID_H
#define BRAID_H



#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// The most bytes that a key can have. Each KiB above the first takes another descent.
#define BRAID_MAX_KEY_LEN 8192

// The most bytes that a value can have.
#define BRAID_MAX_VALUE_LEN 134217728

// The most bytes that a table's name can have.
#define BRAID_MAX_TABLE_NAME_LEN 255

// Status returned by a function. Negative numbers are errors, which `braid_error_message` explains;
// positive ones are outcomes that are not errors.
typedef enum {
  // Success.
  BRAID_OK = 0,
  // There is no such key or name.
  BRAID_NOT_FOUND = 1,
  // The key already exists; nothing was written.
  BRAID_EXISTS = 2,
  // The key has another value than expected; nothing was written.
  BRAID_MISMATCH = 3,
  // The outcome is not known yet.
  BRAID_PENDING = 4,
  // The cursor has returned all entries, or the reader all current changes.
  BRAID_END = 5,
  // A required argument is NULL. Nothing was done.
  BRAID_NULL_ARGUMENT = -1,
  // An argument has an invalid value. Nothing was done.
  BRAID_INVALID_ARGUMENT = -2,
  // The argument is not a handle, or a handle of another kind. Nothing was done.
  BRAID_INVALID_HANDLE = -3,
  // The handle was freed, closed, committed or aborted before. Nothing was done.
  BRAID_STALE_HANDLE = -4,
  // Another thread is using this handle in a call. Nothing was done.
  BRAID_BUSY = -5,
  // A bug made the library panic; the operation may be incomplete. Committed data is as durable
  // as before; close the database and open it again.
  BRAID_PANIC = -6,
  // The transaction lost against a concurrent one and left no trace. Run it again.
  BRAID_CONFLICT = -10,
  // Bytes on disk differ from what was written.
  BRAID_CORRUPTED = -11,
  // The medium, or the configured limit, is full. Nothing was written, nothing is lost.
  BRAID_OUT_OF_SPACE = -12,
  // An earlier write or sync failed, so Braid can promise nothing further: the database is
  // read-only until it is closed and opened again.
  BRAID_POISONED = -13,
  // The database was written by a version, or with options, that this build does not support.
  BRAID_INCOMPATIBLE = -14,
  // Another process, or another handle of this process, has the database open.
  BRAID_LOCKED = -15,
  // The directory exists but contains no Braid database.
  BRAID_NOT_A_DATABASE = -16,
  // The file system does not allow writes.
  BRAID_READ_ONLY = -17,
  // The key is longer than `BRAID_MAX_KEY_LEN`.
  BRAID_KEY_TOO_LONG = -18,
  // The value is longer than `BRAID_MAX_VALUE_LEN`.
  BRAID_VALUE_TOO_LONG = -19,
  // The writes of the transaction exceed the configured limit.
  BRAID_TRANSACTION_TOO_LARGE = -20,
  // There is no table of this name.
  BRAID_TABLE_MISSING = -21,
  // There is already a table of this name.
  BRAID_TABLE_EXISTS = -22,
  // The table was dropped after the handle was opened.
  BRAID_TABLE_DROPPED = -23,
  // The table's name is empty or longer than `BRAID_MAX_TABLE_NAME_LEN`.
  BRAID_TABLE_NAME = -24,
  // The keys or values of the table are not byte strings: a program in another language created
  // it.
  BRAID_TABLE_TYPE = -25,
  // The table belongs to another database than the transaction or snapshot.
  BRAID_FOREIGN_TABLE = -26,
  // An option is out of range.
  BRAID_OPTIONS = -27,
  // The database was closed.
  BRAID_CLOSED = -28,
  // The operating system refused an operation.
  BRAID_IO = -29,
  // The last checkpoint failed. Commits continue while the log has space; Braid retries the
  // checkpoint.
  BRAID_CHECKPOINT_FAILING = -30,
  // An error that this version of the interface has no number for.
  BRAID_OTHER = -31,
  // The database was opened with `BRAID_OPTION_READ_ONLY` and cannot be written.
  BRAID_OPENED_READ_ONLY = -32,
  // The savepoint belongs to another transaction, or the transaction rolled back to an earlier
  // point.
  BRAID_SAVEPOINT_GONE = -33,
  // The key is not greater than the key loaded before it.
  BRAID_OUT_OF_ORDER = -34,
  // The table was created with options other than the requested ones.
  BRAID_TABLE_OPTIONS = -35,
  // There is already a snapshot of this name.
  BRAID_SNAPSHOT_EXISTS = -36,
  // No snapshot of this name was created since the database was opened.
  BRAID_SNAPSHOT_MISSING = -37,
  // The changes after the position are gone: read the tables from scratch.
  BRAID_POSITION_LOST = -38,
  // The position belongs to another database.
  BRAID_FOREIGN_POSITION = -39,
  // There is no feed of this name.
  BRAID_FEED_MISSING = -40,
  // A backup or an archive cannot be made or used; the message says why, and what to do.
  BRAID_BACKUP = -41,
  // The archive cannot be written. Commits continue while the log, which is kept for it, has
  // space; Braid retries.
  BRAID_ARCHIVE_FAILING = -42,
  // A transaction cannot lock a key, because another open transaction of the same thread holds
  // the key's lock, which keys share by their hash: the thread would wait for itself forever.
  // Commit or abort that transaction first.
  BRAID_SELF_DEADLOCK = -43,
  // The parent process opened the database: a child made by `fork` cannot use it. Nothing was
  // done.
  BRAID_FORKED = -44,
} braid_status;

// Commit protocols: which transactions a commit waits for, and when locks go. All keep the same promises.
typedef enum {
  // Parallel logs with one sequence number for each transaction; the default.
  BRAID_PROTOCOL_GLSN = 1,
  // One log; locks are held until the flush.
  BRAID_PROTOCOL_SERIAL = 2,
  // One log; locks go before the flush.
  BRAID_PROTOCOL_AETHER = 3,
  // Parallel logs; commits are acknowledged by epochs.
  BRAID_PROTOCOL_EPOCH = 4,
  // Parallel logs; a commit waits for other logs only as far as it depends on them.
  BRAID_PROTOCOL_GSN = 5,
  // Parallel logs with a number for each flush; locks are held until it is durable.
  BRAID_PROTOCOL_GWSN_STRICT = 6,
  // Parallel logs with a number for each flush; locks go once the flush has it.
  BRAID_PROTOCOL_GWSN = 7,
  // One that this version of the interface has no name for.
  BRAID_PROTOCOL_OTHER = 0,
} braid_protocol;

// How a range is bounded at one end.
typedef enum {
  // By nothing; the key is not looked at.
  BRAID_UNBOUNDED = 0,
  // By a key that belongs to it.
  BRAID_INCLUDED = 1,
  // By a key that does not belong to it.
  BRAID_EXCLUDED = 2,
} braid_bound_kind;

// How a table's values are compressed. Keys are not.
typedef enum {
  // Not at all.
  BRAID_COMPRESSION_NONE = 0,
  // Each value for itself as an LZ4 block, if that makes it smaller.
  BRAID_COMPRESSION_LZ4 = 1,
  // In a way that this version of the interface has no name for.
  BRAID_COMPRESSION_OTHER = -1,
} braid_compression;

// How a database's medium is accessed.
typedef enum {
  // The fastest way that works here.
  BRAID_DEVICE_AUTO = 0,
  // io_uring with direct I/O; Linux only.
  BRAID_DEVICE_URING = 1,
  // Positioned reads and writes.
  BRAID_DEVICE_FILE = 2,
  // The process's memory: nothing outlives the database's handle.
  BRAID_DEVICE_MEMORY = 3,
} braid_device;

// Which end of its range a cursor reads from.
typedef enum {
  // From the smallest key upwards.
  BRAID_FORWARD = 0,
  // From the largest key downwards.
  BRAID_REVERSE = 1,
} braid_direction;

// When a commit is safe from a crash of the system.
typedef enum {
  // Before the commit returns, or its ticket tells so.
  BRAID_DURABLE = 0,
  // Within a time after the commit returns. A crash may lose it, but never a part of it, and nothing that
  // a later durable transaction builds on.
  BRAID_BUFFERED = 1,
  // With the next durable transaction or checkpoint, whenever that is; otherwise like `BRAID_BUFFERED`.
  BRAID_NOT_DURABLE = 2,
} braid_durability;

// What concurrent transactions see of each other.
typedef enum {
  // As if the transactions ran one after the other. Reads see the newest state and are validated at
  // commit; until then two reads may disagree, and then the commit fails with `BRAID_CONFLICT`.
  BRAID_SERIALIZABLE = 0,
  // Reads see the state at the beginning; the first of two writers of a key wins. Allows write skew.
  BRAID_SNAPSHOT_ISOLATION = 1,
} braid_isolation;

// What a write does.
typedef enum {
  // Sets the value of the key, whether it was there or not.
  BRAID_PUT = 0,
  // Removes the key, if it is there; the value is not looked at.
  BRAID_REMOVE = 1,
} braid_operation;

// What `braid_options_set` sets, and what its number means. What is not set has its default.
typedef enum {
  // The commit protocol, a `braid_protocol`. Default: `BRAID_PROTOCOL_GLSN` for a new database; an
  // existing one keeps its own unless another is set.
  BRAID_OPTION_PROTOCOL = 1,
  // How the medium is accessed, a `braid_device`. Default: `BRAID_DEVICE_AUTO`.
  BRAID_OPTION_DEVICE = 2,
  // Memory for pages, in bytes, from 1 MiB. Default: 256 MiB.
  BRAID_OPTION_POOL_BYTES = 3,
  // Log buffers that committing threads are spread over, 1 to 256, fixed when the database is created.
  // Default: the number of processors, at most 16.
  BRAID_OPTION_STRANDS = 4,
  // Files that the log is written to at a time, from 1 to the number of strands, fixed when the database
  // is created. Default: 1.
  BRAID_OPTION_LANES = 5,
  // How long an epoch of `BRAID_PROTOCOL_EPOCH` lasts, in microseconds, from 10 to 10,000,000. Default:
  // 40,000.
  BRAID_OPTION_EPOCH_US = 6,
  // The size of a log file, in bytes, from 64 KiB to 1 GiB. Default: 32 MiB.
  BRAID_OPTION_SEGMENT_BYTES = 7,
  // A checkpoint begins when this much log was written since the last, in bytes, from 64 KiB. Default:
  // 256 MiB.
  BRAID_OPTION_CHECKPOINT_LOG_BYTES = 8,
  // The most that the log may occupy, in bytes: 0 for no limit (the default), or at least twice
  // `BRAID_OPTION_CHECKPOINT_LOG_BYTES`. Commits beyond it fail with `BRAID_OUT_OF_SPACE` until a
  // checkpoint made room.
  BRAID_OPTION_MAX_LOG_BYTES = 9,
  // The most that one transaction may write, in bytes, from 1 KiB to 1 GiB. Default: 256 MiB.
  BRAID_OPTION_TRANSACTION_BYTES_MAX = 10,
  // Log flushes of a lane that may be in flight at once, from 1 to 16.
  BRAID_OPTION_FLUSHES_IN_FLIGHT = 11,
  // How many asynchronous commits of a thread go to the device together; 0 (the default): a flush begins
  // when none is under way.
  BRAID_OPTION_GROUP_SIZE = 12,
  // Whether a missing database is created: 1 (the default) or 0.
  BRAID_OPTION_CREATE_IF_MISSING = 13,
  // Whether threads of the database's own flush and make checkpoints: 1 (the default) or 0. Without them
  // the callers' threads do all work: waiting for a ticket flushes, polling it does not, and checkpoints
  // are made only by `braid_db_checkpoint`.
  BRAID_OPTION_BACKGROUND_THREADS = 14,
  // Whether the space of log that is no longer needed is given back to the medium at once: 1 or 0 (the
  // default: it is kept for reuse).
  BRAID_OPTION_DISCARD = 15,
  // Whether the database is only read: 1 or 0 (the default). It must exist; nothing is written to its
  // directory, and writes are `BRAID_OPENED_READ_ONLY`.
  BRAID_OPTION_READ_ONLY = 16,
  // The most log that is kept for feeds and readers of changes beyond what recovery needs, in bytes.
  // Default: 1 GiB.
  BRAID_OPTION_FEED_LOG_BYTES = 17,
  // How often the archive is brought up to date, in microseconds, from 1. Default: a second.
  BRAID_OPTION_ARCHIVE_INTERVAL_US = 18,
  // Whether the file `STATS` in the database's directory has its statistics while it is open, once a second, as
  // Prometheus reads them: 1 or 0 (the default).
  BRAID_OPTION_STATS_FILE = 19,
  // Log files that opening makes ahead, and that stay, in bytes: at most `BRAID_OPTION_MAX_LOG_BYTES`, if that is
  // set. 0 (the default): each is made, and filled with zeroes, when the one before is used.
  BRAID_OPTION_PREALLOCATED_LOG_BYTES = 20,
  // The permissions of files that are created, as for `chmod`, whatever the umask is: the owner reads and
  // writes, the group and others may. Directories can be searched by those who read the files. Existing
  // files keep theirs. Default: 0600.
  BRAID_OPTION_FILE_MODE = 21,
} braid_option;

// To which point a database is restored.
typedef enum {
  // Everything that the backups and the archive have.
  BRAID_UNTIL_END = 0,
  // The transactions up to a number.
  BRAID_UNTIL_SEQNO = 1,
  // What was durable at a time, in microseconds since 1970, as far as the archive tells times apart.
  BRAID_UNTIL_TIME = 2,
} braid_until;

// A reader of committed transactions, in their order.
typedef struct braid_changes braid_changes;

// A way through a range of keys, from both ends.
typedef struct braid_cursor braid_cursor;

// An open database.
typedef struct braid_db braid_db;

// A named consumer of changes.
typedef struct braid_feed braid_feed;

// A table that is being loaded.
typedef struct braid_loader braid_loader;

// Options for opening a database.
typedef struct braid_options braid_options;

// A read-only view of what was durable at one moment.
typedef struct braid_snapshot braid_snapshot;

// A table of a database.
typedef struct braid_table braid_table;

// The promise that a commit becomes durable.
typedef struct braid_ticket braid_ticket;

// A running read-write transaction.
typedef struct braid_tx braid_tx;

// How a backup or a restore gets on.
typedef struct {
  // Pages copied so far.
  uint64_t pages;
  // Pages to copy in all, as far as known.
  uint64_t pages_total;
} braid_backup_progress;

// Is told how a backup or a restore gets on; `progress` lasts for the call.
typedef void (*braid_backup_callback)(void *data, const braid_backup_progress *progress);

// What a backup holds and what it took.
typedef struct {
  // It has exactly the transactions up to this number.
  uint64_t seqno;
  // Pages of the database.
  uint64_t pages_total;
  // Pages copied: all of them, or those that changed since the parent.
  uint64_t pages;
  // Bytes read from the data file.
  uint64_t read_bytes;
  // Bytes written to the backup.
  uint64_t written_bytes;
} braid_backup_report;

// Takes bytes, which last for the call; says whether it took all of them. If not, the call that gave them fails with
// `BRAID_IO`.
typedef bool (*braid_write_callback)(void *data, const void *bytes, size_t len);

// What a backup file says about itself.
typedef struct {
  // The identity of the database that was backed up. A restored database has another one.
  uint8_t identity[16];
  // It has the transactions up to this number.
  uint64_t seqno;
  // When it was made, in microseconds since 1970.
  uint64_t time_us;
  // Whether it builds on another backup.
  bool is_incremental;
  // The number of that backup; 0 if there is none.
  uint64_t parent;
  // Pages in it.
  uint64_t pages;
} braid_backup_info;

// Gives up to `capacity` bytes; returns how many, 0 at the end, and -1 if it can't, which makes the call that asked
// fail with `BRAID_IO`.
typedef int64_t (*braid_read_callback)(void *data, void *bytes, size_t capacity);

// Where a stream of bytes comes from.
typedef struct {
  // Gives the bytes; NULL: this is no stream.
  braid_read_callback read;
  // Goes to `read`.
  void *data;
} braid_source;

// What `braid_restore` restores from, and to which point.
typedef struct {
  // The paths of the backup files: the full one first, then the incremental ones from the oldest to the newest.
  const char *const *backups;
  // How many they are.
  size_t backup_count;
  // NULL, or as many sources as there are backups: one that has `read` is read in the place of the path of the same
  // index, which may be NULL then.
  const braid_source *streams;
  // The directory of the archive of the database's log, see `braid_options_set_archive`; NULL: none.
  const char *archive;
  // A `braid_until`.
  int until;
  // The number or time that goes with it.
  uint64_t until_value;
  // A `braid_device`, except `BRAID_DEVICE_MEMORY`: how the medium is accessed.
  int device;
  // Memory for pages while the archive is applied, in bytes, at least 512 KiB; 0: 64 MiB.
  size_t pool_bytes;
  // Is told how it gets on, on this thread; may be NULL.
  braid_backup_callback progress;
  // Goes to `progress`.
  void *data;
  // The permissions of the database's files, see `BRAID_OPTION_FILE_MODE`; 0: 0600.
  uint32_t file_mode;
} braid_restore_options;

// What was restored.
typedef struct {
  // The database has exactly the transactions up to this number. Its next ones have greater numbers.
  uint64_t seqno;
  // The number up to which the backups went.
  uint64_t backup_seqno;
  // Pages read from the backups.
  uint64_t pages;
  // Transactions that were applied from the archive.
  uint64_t transactions;
} braid_restore_report;

// What is particular about a table, given when it is created and stored with it. All zeros: nothing.
typedef struct {
  // A `braid_compression`.
  int compression;
  // How long an entry lives after it was written last, in milliseconds; 0 for ever. After that it is not there
  // for reads and scans, and is removed sometime by the maintenance thread or by `braid_db_remove_expired`.
  uint64_t time_to_live_ms;
} braid_table_options;

// A place in the order of a database's transactions, behind one of them: where a reader of changes goes on. It may
// be stored anywhere, and is good for as long as the database lives; one that was restored has other positions.
typedef struct {
  // The library's; the same in every process and on every machine.
  uint8_t bytes[24];
} braid_position;

// Bytes in somebody else's memory.
typedef struct {
  // The first byte. It may be NULL if `len` is 0.
  const void *data;
  // The number of bytes.
  size_t len;
} braid_slice;

// What a transaction did to one key.
typedef struct {
  // The table's number, which it keeps when it is renamed.
  uint32_t table_id;
  // The table's name, in UTF-8 and without a NUL at its end; `data` is NULL if it was dropped before this was
  // read.
  braid_slice table;
  // The key.
  braid_slice key;
  // The new value; `data` is NULL, as it never is otherwise, if the key was removed.
  braid_slice value;
} braid_change;

// A committed transaction with what it wrote, each key once.
typedef struct {
  // Its place in the serial order.
  uint64_t seqno;
  // The position behind it.
  braid_position position;
  // Its writes to tables.
  const braid_change *changes;
  // How many they are.
  size_t change_count;
  // The names of tables that became visible with it and were loaded with a `braid_loader`: what is in them does
  // not come as changes, and is to be read from a snapshot.
  const braid_slice *loaded;
  // How many they are.
  size_t loaded_count;
} braid_change_set;

// One end of a range.
typedef struct {
  // A `braid_bound_kind`.
  int kind;
  // The key.
  braid_slice key;
} braid_bound;

// A range of keys. All zeros: all keys.
typedef struct {
  // Where it begins.
  braid_bound lower;
  // Where it ends.
  braid_bound upper;
} braid_range;

// A key and its value, in the library's memory.
typedef struct {
  // The key.
  braid_slice key;
  // The value.
  braid_slice value;
} braid_entry;

// Counts since the database was opened, and present sizes.
typedef struct {
  // The commit protocol in use.
  braid_protocol protocol;
  // Committed transactions, those without writes included.
  uint64_t commits;
  // Transactions that failed with a conflict.
  uint64_t conflicts;
  // Published checkpoints.
  uint64_t checkpoints;
  // Open snapshots.
  uint64_t snapshots;
  // The number of the oldest open snapshot; 0 if none is open.
  uint64_t oldest_snapshot;
  // Old versions and removed keys that wait to be collected.
  uint64_t old_versions;
  // Entries removed because their time to live was over.
  uint64_t expired;
  // The number up to which all transactions are durable.
  uint64_t durable_seqno;
  // Bytes of log behind the newest checkpoint, which a recovery would read.
  uint64_t log_bytes_to_recover;
  // Whether the last checkpoint failed; `braid_db_health` says why.
  bool checkpoint_failing;
  // Whether nothing can be written any more because a write or sync failed.
  bool poisoned;
  // Whether the log is archived, see `braid_options_set_archive`.
  bool has_archive;
  // The number up to which it is.
  uint64_t archived;
  // The number behind which all changes can still be read.
  uint64_t changes_kept_from;
  // Bytes of log written to the device, with headers and padding.
  uint64_t log_written_bytes;
  // Of these, without padding.
  uint64_t log_chunk_bytes;
  // Of these, what transactions wrote.
  uint64_t log_payload_bytes;
  // Flushes of the log: durable writes.
  uint64_t log_flushes;
  // Chunks of log written; a flush writes one for each strand that has something.
  uint64_t log_chunks;
  // Log records written; a transaction is one, or several if it is large.
  uint64_t log_records;
  // Log records that were appended together with others (`BRAID_PROTOCOL_AETHER`).
  uint64_t log_consolidated_records;
  // Files of the log that exist.
  uint64_t log_segments;
  // Of these, ready for use.
  uint64_t log_segments_ready;
  // Files of the log that were used again.
  uint64_t log_segments_recycled;
  // Times a commit had to wait for buffer space.
  uint64_t log_buffer_waits;
  // Sum over flushes, in microseconds: from the first bytes in a buffer to its sealing.
  uint64_t log_queue_us;
  // Sum over flushes, in microseconds: the durable write.
  uint64_t log_write_us;
  // Sum over flushes, in microseconds: from the write's end until all who waited are told.
  uint64_t log_notify_us;
  // The size of a page, in bytes.
  uint64_t page_size;
  // Pages that the pool can hold.
  uint64_t pool_pages;
  // Pages in memory.
  uint64_t resident_pages;
  // Pages that exist.
  uint64_t pages;
  // Pages read from the medium.
  uint64_t page_loads;
  // Of these, those that were read along with a neighbour before anybody asked for them.
  uint64_t pages_read_ahead;
  // Pages put out of memory.
  uint64_t evictions;
  // Of these, those that had to be written.
  uint64_t eviction_writes;
  // Pages copied because a checkpoint still needed their image.
  uint64_t checkpoint_copies;
  // The data file's length, in bytes.
  uint64_t file_bytes;
  // Of these, free, in bytes.
  uint64_t file_free_bytes;
  // The newest checkpoint's sequence number.
  uint64_t checkpoint_sequence;
} braid_stats;

// What opening a database had to recover.
typedef struct {
  // Bytes of log read.
  uint64_t log_bytes;
  // Transactions replayed.
  uint64_t transactions;
  // Whole transactions that were on the log but came after a gap, so that none of them can have been
  // acknowledged.
  uint64_t discarded;
  // Microseconds that reading the log and finding its end took.
  uint64_t scan_us;
  // Microseconds that opening took, all in all.
  uint64_t duration_us;
} braid_recovery_report;

// The body of a transaction that `braid_db_transact` runs. It returns 0 to have it committed, and anything
// else to have it aborted; the status of a call that failed is passed on. It must not end the transaction.
typedef int (*braid_body)(void *data, braid_tx *tx);

// Is given a name, in UTF-8 and without a NUL at its end; it lasts for the call. Returning `false`
// ends the listing.
typedef bool (*braid_name_callback)(void *data, braid_slice name);

// Is told what `braid_db_health` would return now; `message`, which lasts for the call and is NULL with `BRAID_OK`,
// says why.
typedef void (*braid_health_callback)(void *data, braid_status status, const char *message);

// What `braid_db_compact` did.
typedef struct {
  // The data file's length before, in bytes.
  uint64_t bytes_before;
  // Its length now.
  uint64_t bytes_after;
  // How many checkpoints that took.
  uint32_t checkpoints;
} braid_compact_report;

// What `braid_upgrade` did.
typedef struct {
  // The format that the data file had.
  uint64_t from;
  // The format that it has now, the present one.
  uint64_t to;
} braid_upgrade_report;

// Is told of something that `braid_salvage` came upon: damaged, but found or made good otherwise, or `is_lost`.
// `what` lasts for the call.
typedef void (*braid_finding_callback)(void *data, bool is_lost, const char *what);

// What `braid_salvage` saved.
typedef struct {
  // Tables in the new database.
  uint64_t tables;
  // Entries found in the pages of the newest checkpoint.
  uint64_t entries;
  // Transactions replayed from the log.
  uint64_t transactions;
  // How many findings say that something is lost.
  uint64_t losses;
} braid_salvage_report;

// A value that was read. Its bytes are the caller's until it calls `braid_value_free`, whatever happens to
// the transaction, the snapshot or the database. It may be moved and copied like any struct; one of the
// copies is to be freed.
typedef struct {
  // The first byte; never NULL if there is a value, also if that is empty; NULL if there is none.
  const void *data;
  // The number of bytes.
  size_t len;
  // The library's.
  void *reserved;
} braid_value;

// Is shown an entry, which lasts for the call, and says whether it is to stay.
typedef bool (*braid_keep_callback)(void *data, braid_slice key, braid_slice value);

// How recovery gets on, as a callback is told.
typedef struct {
  // Bytes of log scanned so far.
  uint64_t scanned_bytes;
  // Bytes of log to scan, at most.
  uint64_t total_bytes;
  // Transactions replayed so far; the scan comes first.
  uint64_t transactions;
  // Microseconds since opening began.
  uint64_t elapsed_us;
} braid_recovery_progress;

// Is told how recovery gets on. `data` is what came with the callback; `progress` lasts for the call.
typedef void (*braid_progress_callback)(void *data, const braid_recovery_progress *progress);

// Is told what became of a commit: `BRAID_OK`: the transaction `seqno` is durable; otherwise
// `message`, which lasts for the call and is NULL with `BRAID_OK`, says what went wrong.
typedef void (*braid_durable_callback)(void *data,
                                       braid_status status,
                                       uint64_t seqno,
                                       const char *message);

// How a transaction behaves. All zeros: serializable, and durable when its commit returns.
typedef struct {
  // A `braid_isolation`.
  int isolation;
  // A `braid_durability`.
  int durability;
  // With `BRAID_BUFFERED`: within how many microseconds.
  uint64_t buffered_us;
} braid_tx_options;

// Is told of one damage; `what` lasts for the call.
typedef void (*braid_damage_callback)(void *data, const char *what);

// What `braid_verify` looked at, and how much it found wrong.
typedef struct {
  // Pages of the data file.
  uint64_t pages;
  // Records in them, those of removed keys included.
  uint64_t records;
  // Tables, the catalog included.
  uint64_t tables;
  // Bytes of log behind the newest checkpoint.
  uint64_t log_bytes;
  // Transactions in it.
  uint64_t log_transactions;
  // Findings.
  uint64_t damages;
} braid_verify_report;

// A write of `braid_db_write`.
typedef struct {
  // The table.
  braid_table *table;
  // A `braid_operation`.
  int operation;
  // The key.
  braid_slice key;
  // The value.
  braid_slice value;
} braid_write;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Makes a backup while the database is in use: of everything, or, with the path of an earlier backup of this database
// as `parent`, of what changed since that. `path` is a file that must not exist yet, or an existing directory, in
// which the backup is named `backup-NUMBER.braid`. The file has its name only once it is complete and durable.
//
// `parent` may be NULL, and so may `progress`, which is called with `data` on this thread, and `report`. An incremental
// backup is restored together with its parent, and all that that one builds on.
//
// # Safety
//
// `path` and `parent` are NULL or strings that end with a NUL; `progress` may be called with `data` and must not
// unwind or jump out; `report` is NULL or points to where it fits.
braid_status braid_db_backup(braid_db *db,
                             const char *path,
                             const char *parent,
                             braid_backup_callback progress,
                             void *data,
                             braid_backup_report *report);

// Makes a backup as `braid_db_backup` does, and gives it to `write` piece by piece, on this thread, in the same format
// as to a file: for a pipe, a socket, or another program's storage. A backup that ends early is told from a whole one
// when it is restored. `data` goes to `write` and to `progress`.
//
// # Safety
//
// `parent` is NULL or a string that ends with a NUL; `write` and `progress` may be called with `data` and must not
// unwind or jump out; `report` is NULL or points to where it fits.
braid_status braid_db_backup_to(braid_db *db,
                                braid_write_callback write,
                                const char *parent,
                                braid_backup_callback progress,
                                void *data,
                                braid_backup_report *report);

// Reads what a backup file says about itself; its pages are not looked at.
//
// # Safety
//
// `path` is NULL or a string that ends with a NUL; `info` is NULL or points to where it fits.
braid_status braid_backup_read_info(const char *path, braid_backup_info *info);

// Restores a database from backups, and from an archive if there is one, into a directory that is empty or is
// created. Everything is durable when this returns. `report` may be NULL. A directory in which it failed is no
// database; empty it before the next attempt. `BRAID_BACKUP` says what is wrong with the backups, the archive, the
// point asked for or the directory.
//
// # Safety
//
// `options` is NULL or points to options, whose `backups` point to `backup_count` strings that end with a NUL, as
// `archive` does unless it is NULL, whose `streams` are NULL or point to as many sources, which give no more than they
// are asked for, and whose `progress` may be called with `data`; no callback may unwind or jump out;
// `path` is NULL or a string that ends with a NUL; `report` is NULL or points to where it fits.
braid_status braid_restore(const braid_restore_options *options,
                           const char *path,
                           braid_restore_report *report);

// Brings the archive up to all that is durable now, durably. `seqno`, which may be NULL, is set to
// the number up to which it goes. `BRAID_NOT_FOUND` if the database was opened without an archive.
//
// # Safety
//
// `seqno` is NULL or points to where the number fits.
braid_status braid_db_archive_now(braid_db *db, uint64_t *seqno);

// Returns the message of this thread's last call that returned a negative status, in English; empty
// if there was none. Each thread has its own message, which is valid until its next call that fails.
const char *braid_error_message(void);

// The version of the library, as `"0.1.0"`. It lasts for ever.
const char *braid_version(void);

// Begins to build a table of this name from entries in ascending order of their keys, past the log: for much data
// at once. Nobody sees anything of it before `braid_loader_finish`. `options` may be NULL, which is the same as all
// zeros. `BRAID_TABLE_EXISTS` if there is a table of this name. The loader ends with `braid_loader_finish` or
// `braid_loader_abort`.
//
// # Safety
//
// `name` is NULL or a string that ends with a NUL; `options` is NULL or points to options; `loader` is NULL or
// points to where a handle fits.
braid_status braid_loader_new(braid_db *db,
                              const char *name,
                              const braid_table_options *options,
                              braid_loader **loader);

// Adds an entry, whose key must be above all before: `BRAID_OUT_OF_ORDER` if it is not, and then, as after a key or
// value that is too long, the loader goes on as if it had not been offered. After `BRAID_OUT_OF_SPACE` or `BRAID_IO`
// it can only be aborted.
//
// # Safety
//
// `key` points to `key_len` bytes and `value` to `value_len`, or they are NULL if there are none.
braid_status braid_loader_insert(braid_loader *loader,
                                 const void *key,
                                 size_t key_len,
                                 const void *value,
                                 size_t value_len);

// Sets `count` to the number of entries that were added.
//
// # Safety
//
// `count` is NULL or points to where a number fits.
braid_status braid_loader_count(braid_loader *loader, uint64_t *count);

// Makes everything durable, with a checkpoint, and then visible, all at once. `table`, which may be NULL, is set to a
// handle of the table. The loader is over afterwards, whatever is returned, unless the handle itself was wrong or
// busy; if it is not `BRAID_OK`, there is no table, but after `BRAID_POISONED` only opening the database again tells.
//
// # Safety
//
// `table` is NULL or points to where a handle fits.
braid_status braid_loader_finish(braid_loader *loader,
                                 braid_table **table);

// Ends a loader without a trace. NULL is allowed, and does nothing.
braid_status braid_loader_abort(braid_loader *loader);

// Sets `position` to the one behind all that is durable now.
//
// # Safety
//
// `position` is NULL or points to where one fits.
braid_status braid_db_position(braid_db *db, braid_position *position);

// Sets `position` to the oldest one from which changes can be read: with no feeds, the beginning of the newest
// checkpoint.
//
// # Safety
//
// That of `braid_db_position`.
braid_status braid_db_oldest_position(braid_db *db,
                                      braid_position *position);

// Sets `position` to the one behind the transaction of a number, for who kept only that.
//
// # Safety
//
// That of `braid_db_position`.
braid_status braid_db_position_behind(braid_db *db, uint64_t seqno, braid_position *position);

// Opens a reader of the committed, durable transactions behind a position, in their order. While it is open, the log
// that it has not read is kept, up to `BRAID_OPTION_FEED_LOG_BYTES`. `BRAID_POSITION_LOST` if that behind the position
// is not kept any more, `BRAID_FOREIGN_POSITION` if it is none of this database. It is freed with
// `braid_changes_free`.
//
// # Safety
//
// `from` is NULL or points to a position; `changes` is NULL or points to where a handle fits.
braid_status braid_db_changes(braid_db *db,
                              const braid_position *from,
                              braid_changes **changes);

// Gives the next transaction; if there is none, waits for one, but not for longer than `timeout_us` microseconds.
// `BRAID_END` if there is none for now: it can be asked again. What `set` points to lasts until the next call with
// this reader. `BRAID_POSITION_LOST` if the reader was left behind by more log than is kept for it.
//
// # Safety
//
// `set` is NULL or points to where one fits. No other thread uses the reader, or frees it, as long as what was given is
// looked at.
braid_status braid_changes_next(braid_changes *changes,
                                uint64_t timeout_us,
                                braid_change_set *set);

// Sets `position` to the one behind what the reader gave so far, and behind transactions that had nothing to show.
//
// # Safety
//
// `position` is NULL or points to where one fits.
braid_status braid_changes_position(braid_changes *changes,
                                    braid_position *position);

// Frees a reader. NULL is allowed, and does nothing.
braid_status braid_changes_free(braid_changes *changes);

// Opens a cursor over a range of a table as a transaction sees it, its own writes included. `range` may be
// NULL, for all keys. The cursor is freed with `braid_cursor_free`.
//
// The transaction may be written to while the cursor is open: the cursor goes on behind the last entry that
// it gave, and sees what was written there. Once the transaction is over, using the cursor is
// `BRAID_STALE_HANDLE`. A call with the cursor is a call with the transaction, too: one thread at a time.
//
// # Safety
//
// `range` is NULL or points to a range, the `data` of whose keys points to `len` bytes, or is NULL if there
// are none; `cursor` is NULL or points to where a handle fits.
braid_status braid_tx_range(braid_tx *tx,
                            braid_table *table,
                            const braid_range *range,
                            braid_cursor **cursor);

// Opens a cursor over the keys that begin with a prefix, as `braid_tx_range` does.
//
// # Safety
//
// `prefix` points to `prefix_len` bytes, or is NULL if there are none; `cursor` is NULL or points to where a
// handle fits.
braid_status braid_tx_prefix(braid_tx *tx,
                             braid_table *table,
                             const void *prefix,
                             size_t prefix_len,
                             braid_cursor **cursor);

// Opens a cursor over a range of a table as a snapshot sees it. `range` may be NULL, for all keys. The cursor
// is freed with `braid_cursor_free`; it keeps what the snapshot sees until then.
//
// # Safety
//
// That of `braid_tx_range`.
braid_status braid_snapshot_range(braid_snapshot *snapshot,
                                  braid_table *table,
                                  const braid_range *range,
                                  braid_cursor **cursor);

// Opens a cursor over the keys that begin with a prefix, as `braid_snapshot_range` does.
//
// # Safety
//
// That of `braid_tx_prefix`.
braid_status braid_snapshot_prefix(braid_snapshot *snapshot,
                                   braid_table *table,
                                   const void *prefix,
                                   size_t prefix_len,
                                   braid_cursor **cursor);

// Gives the entry with the smallest key of those that are left; `BRAID_END` if there is none left. What
// `entry` points to lasts until the next call with this cursor. After an error, which is told again each
// time, there is nothing more to be had.
//
// # Safety
//
// `entry` is NULL or points to where an entry fits. No other thread uses the cursor, or frees it, as long as
// the entry is looked at.
braid_status braid_cursor_next(braid_cursor *cursor,
                               braid_entry *entry);

// Gives the entry with the largest key of those that are left, as `braid_cursor_next` does. Both can be mixed;
// each entry comes once.
//
// # Safety
//
// That of `braid_cursor_next`.
braid_status braid_cursor_next_back(braid_cursor *cursor,
                                    braid_entry *entry);

// Gives up to `capacity` entries at once, which costs less than one after the other. `direction` is a
// `braid_direction`. `count` is set to how many there are; `BRAID_END`, and 0, if there is none left. What they
// point to lasts until the next call with this cursor. To a serializable transaction all of them count as
// read.
//
// # Safety
//
// `entries` is NULL or points to where `capacity` entries fit; `count` is NULL or points to where a number
// fits. No other thread uses the cursor, or frees it, as long as the entries are looked at.
braid_status braid_cursor_fetch(braid_cursor *cursor,
                                int direction,
                                braid_entry *entries,
                                size_t capacity,
                                size_t *count);

// Frees a cursor. NULL is allowed, and does nothing.
braid_status braid_cursor_free(braid_cursor *cursor);

// Opens the database in a directory, and creates it if need be.
//
// `options` may be NULL: then all are at their defaults. With `BRAID_DEVICE_MEMORY` the database is in
// memory, and `path` is not looked at. The handle is closed with `braid_db_close`.
//
// # Safety
//
// `path` is NULL or a string that ends with a NUL; `db` is NULL or points to where a handle fits.
braid_status braid_db_open(const char *path,
                           braid_options *options,
                           braid_db **db);

// Closes a database: waits for what is committed, writes a last checkpoint, stops the threads, unlocks the
// directory. The handle is good for nothing afterwards, whatever is returned.
//
// What is still open of the database ends with it: transactions are aborted, and tables, snapshots, cursors,
// loaders, feeds and readers of changes are freed. What another thread is using at this moment stays until that thread frees it, and
// answers `BRAID_CLOSED`. Tickets stay: what they tell is still true.
//
// A failure (`BRAID_POISONED`, or what a checkpoint can fail with) says that the last checkpoint was not
// written; what was acknowledged is safe even so.
braid_status braid_db_close(braid_db *db);

// Moves a database that was opened with `BRAID_OPTION_READ_ONLY` to the newest durable state: tables, and
// snapshots and transactions from then on, show it; what is open keeps its state. While another process
// writes, the new state has every transaction that was acknowledged before the call, and nothing that a
// crash could take back. `newer`, which may be NULL, is set to whether the state is newer than the one
// before. For a database that is open for writing, this does nothing. After an error (those of
// `braid_db_open`) the state is the one before.
//
// # Safety
//
// `newer` is NULL or points to room for a `bool`.
braid_status braid_db_refresh(braid_db *db,
                              bool *newer);

// Waits until everything committed so far is durable, whatever its durability.
braid_status braid_db_sync(braid_db *db);

// Waits until the transaction of a number (`braid_db_submit`, `braid_tx_submit`), and all before it, are durable.
// `BRAID_POISONED` if the log failed before; `BRAID_INVALID_ARGUMENT` if no transaction has the number yet.
braid_status braid_db_wait(braid_db *db,
                           uint64_t seqno);

// Writes a checkpoint now: the log before it is no longer needed, and its space is reused. If it fails
// (`BRAID_OUT_OF_SPACE`, `BRAID_IO`, `BRAID_POISONED`), the checkpoint before stays good.
braid_status braid_db_checkpoint(braid_db *db);

// Sets `seqno` to the number up to which all transactions are durable.
//
// # Safety
//
// `seqno` is NULL or points to where the number fits.
braid_status braid_db_durable_seqno(braid_db *db, uint64_t *seqno);

// Counts since the database was opened, and present sizes.
//
// # Safety
//
// `stats` is NULL or points to where they fit.
braid_status braid_db_stats(braid_db *db, braid_stats *stats);

// What opening the database had to recover.
//
// # Safety
//
// `report` is NULL or points to where it fits.
braid_status braid_db_recovery(braid_db *db, braid_recovery_report *report);

// Runs `body` in a serializable transaction and commits it, again and again while the body returns, or the
// commit fails with, `BRAID_CONFLICT`, with growing pauses, at most 1,000 times.
//
// Returns `BRAID_OK` once it is durable; what the body returned if that was neither 0 nor `BRAID_CONFLICT`;
// otherwise the status of what failed. `seqno`, which may be NULL, is set to the transaction's
// place in the serial order.
//
// # Safety
//
// `body` may be called with `data`, several times. It must not unwind or jump out. `seqno` is NULL
// or points to where the number fits.
int braid_db_transact(braid_db *db,
                      braid_body body,
                      void *data,
                      uint64_t *seqno);

// Opens the feed of a name, which is created, durably, if there is none: it then begins behind what is durable now.
// The database remembers how far a feed has come, and keeps the log behind that for it, up to
// `BRAID_OPTION_FEED_LOG_BYTES`. The handle is freed with `braid_feed_free`; the feed stays until
// `braid_feed_drop`.
//
// # Safety
//
// `name` is NULL or a string that ends with a NUL; `feed` is NULL or points to where a handle fits.
braid_status braid_feed_open(braid_db *db,
                             const char *name,
                             braid_feed **feed);

// Sets `position` to that up to which the feed was acknowledged; `BRAID_FEED_MISSING` if it was dropped.
//
// # Safety
//
// `position` is NULL or points to where one fits.
braid_status braid_feed_position(braid_feed *feed,
                                 braid_position *position);

// Opens a reader of the transactions that were not acknowledged yet, as `braid_db_changes` does from a position.
//
// # Safety
//
// `changes` is NULL or points to where a handle fits.
braid_status braid_feed_changes(braid_feed *feed,
                                braid_changes **changes);

// Notes, durably, that everything up to `position` was taken over, so that it is not needed any more. An older
// position than the one noted changes nothing. This is a transaction of its own.
//
// # Safety
//
// `position` is NULL or points to one.
braid_status braid_feed_acknowledge(braid_feed *feed,
                                    const braid_position *position);

// Frees a feed's handle, not the feed. NULL is allowed, and does nothing.
braid_status braid_feed_free(braid_feed *feed);

// Removes a feed, durably: the log is not kept for it any more. `BRAID_NOT_FOUND` if there is none of this name.
//
// # Safety
//
// `name` is NULL or a string that ends with a NUL.
braid_status braid_feed_drop(braid_db *db,
                             const char *name);

// Calls `callback` with the name of each feed of the database, in their order, on this thread.
//
// # Safety
//
// `callback` may be called with `data`. It must not unwind or jump out.
braid_status braid_feed_names(braid_db *db, braid_name_callback callback, void *data);

// Whether the database can be written to. `BRAID_OK`: everything works. Otherwise `braid_error_message`
// tells why: `BRAID_CHECKPOINT_FAILING`: the last checkpoint failed, commits go on while there is log space.
// `BRAID_OUT_OF_SPACE`: the last commit found no room; others that need less may succeed.
// `BRAID_ARCHIVE_FAILING`: the archive can't be written, commits go on while the log has room.
// `BRAID_POISONED`: a write or sync failed, reads go on, writes fail until the database is opened again.
braid_status braid_db_health(braid_db *db);

// Sets what databases that are opened with these options call when their health becomes another: when a failure
// poisons one, when a commit or a checkpoint finds no space, when that is over, and when it is closed
// (`BRAID_CLOSED`). It is called on the thread that notices, within 50 ms, and must be short.
//
// # Safety
//
// `callback` may be called with `data` from any thread until every database that was opened with these options is
// closed. It must not unwind or jump out.
braid_status braid_options_set_health_callback(braid_options *options,
                                               braid_health_callback callback,
                                               void *data);

// Moves the pages at the end of the data file into free space before them, and cuts the file. Transactions go on
// meanwhile; a crash at any moment loses nothing. `report` may be NULL. If it fails, as a checkpoint can, the
// checkpoint before stays good.
//
// # Safety
//
// `report` is NULL or points to where it fits.
braid_status braid_db_compact(braid_db *db,
                              braid_compact_report *report);

// Brings a database that nobody has open to the format of this version. One that has it already is read, its log
// too, and left as it is. `report` may be NULL. `BRAID_INCOMPATIBLE` if the format is newer than this version's, or
// too old to be converted.
//
// # Safety
//
// `path` is NULL or a string that ends with a NUL; `report` is NULL or points to where it fits.
braid_status braid_upgrade(const char *path,
                           braid_upgrade_report *report);

// Saves what can be read of a damaged database that nobody has open into a new one in the directory `into`, which is
// made. Writes nothing to the damaged one. Each damage and each loss goes to `callback`, which may be NULL, on this
// thread, with the table and the range of keys, or the numbers of the transactions, that it concerns. Entries of
// which it is not known to which table they belong go to tables named `salvaged-…`. `report` may be NULL.
//
// `BRAID_OK` also if something is lost: `report` says how much. `BRAID_NOT_A_DATABASE` also if there is something
// in `into`; `BRAID_CORRUPTED` if there is nothing to begin with.
//
// # Safety
//
// `path` and `into` are NULL or strings that end with a NUL; `callback` may be called with `data` and must not unwind
// or jump out; `report` is NULL or points to where it fits.
braid_status braid_salvage(const char *path,
                           const char *into,
                           braid_finding_callback callback,
                           void *data,
                           braid_salvage_report *report);

// Reads several keys of a table from one snapshot of the durable state. The reads of the keys' pages
// overlap, so one call takes less time than a call per key.
//
// `values[i]` is set to the value of `keys[i]`; its `data` is NULL if the key does not exist. Free each
// value with `braid_value_free`. After an error no element is a value.
//
// # Safety
//
// `keys` is NULL or points to `count` slices, each of whose `data` points to `len` bytes or is NULL if
// `len` is 0; `values` is NULL or points to room for `count` values.
braid_status braid_table_get_many(braid_table *table,
                                  const braid_slice *keys,
                                  size_t count,
                                  braid_value *values);

// Reads several keys of a table in a snapshot, as `braid_table_get_many` does for the durable state.
//
// # Safety
//
// That of `braid_table_get_many`.
braid_status braid_snapshot_get_many(braid_snapshot *snapshot,
                                     braid_table *table,
                                     const braid_slice *keys,
                                     size_t count,
                                     braid_value *values);

// Reads several keys of a table in a transaction, including the transaction's own writes, as
// `braid_table_get_many` does for the durable state.
//
// # Safety
//
// That of `braid_table_get_many`.
braid_status braid_tx_get_many(braid_tx *tx,
                               braid_table *table,
                               const braid_slice *keys,
                               size_t count,
                               braid_value *values);

// Loads the pages that hold these keys into memory, all at once, before the transaction reads or writes
// the keys. A hint: it changes nothing and adds nothing to the transaction's read set.
//
// # Safety
//
// `keys` is NULL or points to `count` slices, each of whose `data` points to `len` bytes or is NULL if
// `len` is 0.
braid_status braid_tx_prefetch(braid_tx *tx,
                               braid_table *table,
                               const braid_slice *keys,
                               size_t count);

// Loads the pages that hold these keys into memory, as `braid_tx_prefetch` does.
//
// # Safety
//
// That of `braid_tx_prefetch`.
braid_status braid_snapshot_prefetch(braid_snapshot *snapshot,
                                     braid_table *table,
                                     const braid_slice *keys,
                                     size_t count);

// Estimates the number of entries in a range of keys, and the bytes of their keys and values as stored.
// It reads a few pages, whatever the table's size: exact for a small range, usually within ten per cent
// for a large one. A `range` of NULL is the whole table. `entries` and `bytes` may be NULL.
//
// # Safety
//
// `range` is NULL or points to a range whose keys point to as many bytes as they say; `entries` and
// `bytes` are NULL or point to room for a number.
braid_status braid_table_estimate(braid_table *table,
                                  const braid_range *range,
                                  uint64_t *entries,
                                  uint64_t *bytes);

// Removes the entries of a range that `keep` says no to, and sets `count`, which may be NULL, to how many there were.
// `keep` is called with all of them, in their order, on this thread. Otherwise as `braid_tx_remove_range`.
//
// # Safety
//
// `keep` may be called with `data`. It must not unwind or jump out. Otherwise that of `braid_tx_remove_range`.
braid_status braid_tx_retain(braid_tx *tx,
                             braid_table *table,
                             const braid_range *range,
                             braid_keep_callback keep,
                             void *data,
                             uint64_t *count);

// Takes the entry with the smallest key out of a table: removes it, and sets `key` and `value` to what it was, each of
// which is freed with `braid_value_free`. `BRAID_NOT_FOUND` if the table is empty. Transactions that put an entry
// before it meanwhile conflict with this one.
//
// # Safety
//
// `key` and `value` are NULL or point to where a value fits, each to another place.
braid_status braid_tx_pop_first(braid_tx *tx,
                                braid_table *table,
                                braid_value *key,
                                braid_value *value);

// Takes the entry with the largest key out of a table, as `braid_tx_pop_first` does that with the smallest.
//
// # Safety
//
// That of `braid_tx_pop_first`.
braid_status braid_tx_pop_last(braid_tx *tx,
                               braid_table *table,
                               braid_value *key,
                               braid_value *value);

// Makes options that are all at their defaults. They can be used for any number of databases, and are
// freed with `braid_options_free`.
//
// # Safety
//
// `options` is NULL or points to where a handle fits.
braid_status braid_options_new(braid_options **options);

// Sets an option. `option` is a `braid_option`, which says what `value` means; whether it fits is found out
// when a database is opened, with `BRAID_OPTIONS`. `BRAID_INVALID_ARGUMENT`, with nothing changed, for an
// option that there is not or a value that it never has.
braid_status braid_options_set(braid_options *options,
                               int option,
                               uint64_t value);

// Sets what `braid_db_open` calls while it recovers, now and then, from several threads at once.
//
// # Safety
//
// `callback` may be called with `data` from any thread while a database is opened with these options. It
// must not unwind or jump out.
braid_status braid_options_set_recovery_progress(braid_options *options,
                                                 braid_progress_callback callback,
                                                 void *data);

// Sets a directory, created if it is missing, to which every durable transaction is copied while a database is
// open with these options, so that a backup can be restored up to any later point (`braid_restore`). It should lie
// on another medium. Log that is not archived yet is kept, so if the archive's medium fails, commits go on until
// the log is full; `braid_db_health` tells meanwhile.
//
// # Safety
//
// `path` is NULL or a string that ends with a NUL.
braid_status braid_options_set_archive(braid_options *options,
                                       const char *path);

// Frees options. NULL is allowed, and does nothing.
braid_status braid_options_free(braid_options *options);

// Takes a read-only view of what is durable now. It never blocks a writer, is never blocked by one, and
// never conflicts. While it is there, values that are overwritten stay in memory for it. It is freed with
// `braid_snapshot_free`.
//
// # Safety
//
// `snapshot` is NULL or points to where a handle fits.
braid_status braid_snapshot_open(braid_db *db,
                                 braid_snapshot **snapshot);

// Takes a snapshot, as `braid_snapshot_open` does, and keeps it under a name until `braid_snapshot_drop`, so that
// other threads find it. It does not outlive the open database: what it sees of the past is in memory.
// `snapshot`, which may be NULL, is set to a handle of it. `BRAID_SNAPSHOT_EXISTS` if the name is taken.
//
// # Safety
//
// `name` is NULL or a string that ends with a NUL; `snapshot` is NULL or points to where a handle fits.
braid_status braid_snapshot_create(braid_db *db,
                                   const char *name,
                                   braid_snapshot **snapshot);

// Opens the snapshot of a name, as it was when it was created; `BRAID_SNAPSHOT_MISSING` if there is none, also
// after the database was opened anew. It is freed with `braid_snapshot_free`.
//
// # Safety
//
// `name` is NULL or a string that ends with a NUL; `snapshot` is NULL or points to where a handle fits.
braid_status braid_snapshot_open_named(braid_db *db,
                                       const char *name,
                                       braid_snapshot **snapshot);

// Takes a snapshot's name away; `BRAID_NOT_FOUND` if there is none of this name. Those that have it open keep it.
//
// # Safety
//
// `name` is NULL or a string that ends with a NUL.
braid_status braid_snapshot_drop(braid_db *db,
                                 const char *name);

// Calls `callback` with the name of each named snapshot, in their order, on this thread.
//
// # Safety
//
// `callback` may be called with `data`. It must not unwind or jump out.
braid_status braid_snapshot_names(braid_db *db, braid_name_callback callback, void *data);

// Frees a snapshot; cursors over it go on until they are freed. NULL is allowed, and does nothing.
braid_status braid_snapshot_free(braid_snapshot *snapshot);

// Sets `seqno` to the number of the newest transaction that the snapshot sees.
//
// # Safety
//
// `seqno` is NULL or points to where the number fits.
braid_status braid_snapshot_seqno(braid_snapshot *snapshot, uint64_t *seqno);

// The value of a key; `BRAID_NOT_FOUND` if it is not there. A value is freed with `braid_value_free`.
//
// # Safety
//
// `key` points to `key_len` bytes, or is NULL if there are none; `value` is NULL or points to where a value
// fits.
braid_status braid_snapshot_get(braid_snapshot *snapshot,
                                braid_table *table,
                                const void *key,
                                size_t key_len,
                                braid_value *value);

// Whether a key is there: `BRAID_OK` or `BRAID_NOT_FOUND`.
//
// # Safety
//
// `key` points to `key_len` bytes, or is NULL if there are none.
braid_status braid_snapshot_contains(braid_snapshot *snapshot,
                                     braid_table *table,
                                     const void *key,
                                     size_t key_len);

// Sets `len` to how many entries a table has. They are counted one by one, which takes as long as reading all of them.
//
// # Safety
//
// `len` is NULL or points to where a number fits.
braid_status braid_snapshot_len(braid_snapshot *snapshot,
                                braid_table *table,
                                uint64_t *len);

// Returns the name of a status, such as `"BRAID_CONFLICT"`; `"unknown"` for a number that is not a
// status. The string is static.
const char *braid_status_name(int status);

// Returns whether running the same transaction again can succeed without any other change.
bool braid_status_is_retryable(int status);

// Opens a table of byte strings by byte strings, and creates it, durably, if there is none of this name.
//
// The handle can be used in any transaction and snapshot of the database, from any thread. It is freed
// with `braid_table_free`.
//
// # Safety
//
// `name` is NULL or a string that ends with a NUL; `table` is NULL or points to where a handle fits.
braid_status braid_table_open(braid_db *db,
                              const char *name,
                              braid_table **table);

// Opens a table as `braid_table_open` does, with options: a table that is created gets them, one that is there must
// have been created with the same, otherwise it is `BRAID_TABLE_OPTIONS`. `options` may be NULL, which is the same as
// all zeros.
//
// # Safety
//
// That of `braid_table_open`; `options` is NULL or points to options.
braid_status braid_table_open_with(braid_db *db,
                                   const char *name,
                                   const braid_table_options *options,
                                   braid_table **table);

// Sets `options` to what the table was created with.
//
// # Safety
//
// `options` is NULL or points to where they fit.
braid_status braid_table_get_options(braid_table *table, braid_table_options *options);

// Opens a table as `braid_table_open` does, if there is one of this name; `BRAID_NOT_FOUND` if not.
//
// # Safety
//
// That of `braid_table_open`.
braid_status braid_table_open_existing(braid_db *db, const char *name, braid_table **table);

// Frees a table's handle, not the table. NULL is allowed, and does nothing.
braid_status braid_table_free(braid_table *table);

// Reads one key of what is durable now, as a snapshot of its own would, at less cost. `BRAID_NOT_FOUND` if
// the key is not there. A value is freed with `braid_value_free`.
//
// # Safety
//
// `key` points to `key_len` bytes, or is NULL if there are none; `value` is NULL or points to where a value
// fits.
braid_status braid_table_get(braid_table *table,
                             const void *key,
                             size_t key_len,
                             braid_value *value);

// Removes a table with all it holds, durably; `BRAID_NOT_FOUND` if there is none of this name. Its space is
// free once all its handles are, after the next checkpoint.
//
// # Safety
//
// `name` is NULL or a string that ends with a NUL.
braid_status braid_table_drop(braid_db *db,
                              const char *name);

// Gives a table another name, durably. `BRAID_TABLE_MISSING` if there is none of the old name,
// `BRAID_TABLE_EXISTS` if there is one of the new.
//
// # Safety
//
// `from` and `to` are NULL or strings that end with a NUL.
braid_status braid_table_rename(braid_db *db, const char *from, const char *to);

// Calls `callback` with the name of each table of the database, in their order, on this thread.
//
// # Safety
//
// `callback` may be called with `data`. It must not unwind or jump out.
braid_status braid_table_names(braid_db *db, braid_name_callback callback, void *data);

// Removes all entries whose time to live is over, from all tables; sets `count`, which may be NULL, to how many.
// Keys that a transaction has locked are left alone.
//
// # Safety
//
// `count` is NULL or points to where a number fits.
braid_status braid_db_remove_expired(braid_db *db,
                                     uint64_t *count);

// Sets `seqno` to the transaction's place in the serial order.
//
// # Safety
//
// `seqno` is NULL or points to where the number fits.
braid_status braid_ticket_seqno(braid_ticket *ticket, uint64_t *seqno);

// Asks, without waiting, whether the transaction is durable: `BRAID_OK` if it is, `BRAID_PENDING` if that is
// not known yet, `BRAID_POISONED` if the log failed before.
braid_status braid_ticket_poll(braid_ticket *ticket);

// Waits until the transaction is durable. `BRAID_POISONED` if the log failed before. The ticket stays, and
// tells the same again.
braid_status braid_ticket_wait(braid_ticket *ticket);

// Exchanges a ticket for a callback: the ticket is freed, and `callback` is called once, when the outcome is
// known: at once on this thread if it is, otherwise on the thread that completes the flush. It must be
// short, since others wait behind it, and must not wait for a commit, a sync or a checkpoint of the
// database, nor close it.
//
// # Safety
//
// `callback` may be called with `data` from any thread. It must not unwind or jump out.
braid_status braid_ticket_on_durable(braid_ticket *ticket,
                                     braid_durable_callback callback,
                                     void *data);

// Frees a ticket. The transaction becomes durable all the same. NULL is allowed, and does nothing.
braid_status braid_ticket_free(braid_ticket *ticket);

// Begins a transaction. `options` may be NULL, which is the same as all zeros.
//
// The handle ends with `braid_tx_commit`, `braid_tx_commit_async`, `braid_tx_submit` or `braid_tx_abort`. Any thread may use
// it, but one at a time.
//
// # Safety
//
// `options` is NULL or points to options; `tx` is NULL or points to where a handle fits.
braid_status braid_tx_begin(braid_db *db,
                            const braid_tx_options *options,
                            braid_tx **tx);

// Sets when the commit is safe: `durability` is a `braid_durability`.
braid_status braid_tx_set_durability(braid_tx *tx, int durability, uint64_t buffered_us);

// Notes where the transaction is, so that `braid_tx_rollback_to` can take back what it writes from here on.
// `savepoint` is set to a number that stands for this point of this transaction; it needs no freeing.
//
// # Safety
//
// `savepoint` is NULL or points to where the number fits.
braid_status braid_tx_savepoint(braid_tx *tx,
                                uint64_t *savepoint);

// Takes back all writes made since a savepoint, and forgets the savepoints made since; the savepoint itself
// stands. What was read since stays read, and locks stay held. `BRAID_SAVEPOINT_GONE`, with nothing changed, if it
// is another transaction's, or the transaction returned to a point before it.
braid_status braid_tx_rollback_to(braid_tx *tx,
                                  uint64_t savepoint);

// Makes the writes visible and durable, together or not at all. `BRAID_OK` says that they are on the device,
// or, with a durability of less, that they are visible.
//
// The transaction is over afterwards, whatever is returned, unless the handle itself was wrong or busy. After
// `BRAID_CONFLICT` or `BRAID_OUT_OF_SPACE` nothing of it remains; after `BRAID_POISONED` only opening the
// database again tells whether it survives. `seqno`, which may be NULL, is set to its place in the
// serial order.
//
// # Safety
//
// `seqno` is NULL or points to where the number fits.
braid_status braid_tx_commit(braid_tx *tx,
                             uint64_t *seqno);

// Makes the writes visible, and gives a ticket that tells when they are durable. The transaction is over
// afterwards as with `braid_tx_commit`. `ticket` may be NULL: then nobody is told, and the transaction
// becomes durable all the same. The ticket is freed with `braid_ticket_free`.
//
// # Safety
//
// `ticket` is NULL or points to where a handle fits.
braid_status braid_tx_commit_async(braid_tx *tx,
                                   braid_ticket **ticket);

// Makes the writes visible, as `braid_tx_commit_async` does, and sets `seqno` to the transaction's
// place in the serial order instead of giving a ticket: `braid_db_wait` waits for it, and there is
// nothing to free.
//
// # Safety
//
// `seqno` is NULL or points to where it fits.
braid_status braid_tx_submit(braid_tx *tx, uint64_t *seqno);

// Ends a transaction without a trace. NULL is allowed, and does nothing.
braid_status braid_tx_abort(braid_tx *tx);

// The value of a key, the transaction's own writes included; `BRAID_NOT_FOUND` if it is not there. A value is
// freed with `braid_value_free`.
//
// # Safety
//
// `key` points to `key_len` bytes, or is NULL if there are none; `value` is NULL or points to where a value
// fits.
braid_status braid_tx_get(braid_tx *tx,
                          braid_table *table,
                          const void *key,
                          size_t key_len,
                          braid_value *value);

// The value of a key, as `braid_tx_get`, locked against other writers until the transaction ends: for a value
// that is about to be written, so that hot keys queue instead of conflicting. `BRAID_CONFLICT` on a deadlock.
//
// # Safety
//
// That of `braid_tx_get`.
braid_status braid_tx_get_for_update(braid_tx *tx,
                                     braid_table *table,
                                     const void *key,
                                     size_t key_len,
                                     braid_value *value);

// Whether a key is there: `BRAID_OK` or `BRAID_NOT_FOUND`.
//
// # Safety
//
// `key` points to `key_len` bytes, or is NULL if there are none.
braid_status braid_tx_contains(braid_tx *tx, braid_table *table, const void *key, size_t key_len);

// Sets `len` to how many entries a table has, the transaction's own writes included. They are counted one by one, and
// all of them count as read: the transaction conflicts with everybody who adds or removes one.
//
// # Safety
//
// `len` is NULL or points to where a number fits.
braid_status braid_tx_len(braid_tx *tx,
                          braid_table *table,
                          uint64_t *len);

// Sets the value of a key, whether it was there or not. `BRAID_CONFLICT` on a deadlock; then, as after any
// error, the transaction goes on until it is aborted or committed.
//
// # Safety
//
// `key` points to `key_len` bytes and `value` to `value_len`, or they are NULL if there are none.
braid_status braid_tx_insert(braid_tx *tx,
                             braid_table *table,
                             const void *key,
                             size_t key_len,
                             const void *value,
                             size_t value_len);

// Sets the value of a key that is not there; `BRAID_EXISTS` if it is.
//
// # Safety
//
// That of `braid_tx_insert`.
braid_status braid_tx_insert_if_absent(braid_tx *tx,
                                       braid_table *table,
                                       const void *key,
                                       size_t key_len,
                                       const void *value,
                                       size_t value_len);

// Sets the value of a key to `desired` (NULL: removes it) if it is `expected` (NULL: if it is not there);
// `BRAID_MISMATCH` if not.
//
// # Safety
//
// `key` points to `key_len` bytes, or is NULL if there are none; `expected` and `desired` are NULL or point
// to slices whose `data` points to `len` bytes, or is NULL if there are none.
braid_status braid_tx_compare_and_set(braid_tx *tx,
                                      braid_table *table,
                                      const void *key,
                                      size_t key_len,
                                      const braid_slice *expected,
                                      const braid_slice *desired);

// Removes a key; `BRAID_NOT_FOUND` if it is not there.
//
// # Safety
//
// `key` points to `key_len` bytes, or is NULL if there are none.
braid_status braid_tx_remove(braid_tx *tx, braid_table *table, const void *key, size_t key_len);

// Removes all keys of a range, and sets `count`, which may be NULL, to how many there were. `range` may be NULL, for all
// keys. Other transactions that put a key into the range meanwhile conflict with this one. The keys are gathered in
// memory; for a whole table, `braid_table_drop` costs less.
//
// # Safety
//
// `range` is NULL or points to a range, the `data` of whose keys points to `len` bytes, or is NULL if there
// are none; `count` is NULL or points to where a number fits.
braid_status braid_tx_remove_range(braid_tx *tx,
                                   braid_table *table,
                                   const braid_range *range,
                                   uint64_t *count);

// Frees a value and sets it to no value, so that freeing it again does nothing; nor does freeing NULL.
//
// # Safety
//
// `value` is NULL, or points to a value that a function of this library has set or that is all zeros, and
// of which no copy was freed.
void braid_value_free(braid_value *value);

// Checks a database that nobody has open: every checksum, the order of the trees, the accounting of space,
// the chains of the log. Writes nothing. Each finding goes to `callback`, which may be NULL, on this
// thread, and the counts to `report`, which may be NULL.
//
// `BRAID_OK` if nothing is wrong, `BRAID_CORRUPTED` if something is; both with a report. Otherwise what kept
// it from looking: `BRAID_NOT_A_DATABASE`, `BRAID_LOCKED`, `BRAID_INCOMPATIBLE`, `BRAID_IO`.
//
// # Safety
//
// `path` is NULL or a string that ends with a NUL; `callback` may be called with `data` and must not unwind
// or jump out; `report` is NULL or points to where it fits.
braid_status braid_verify(const char *path,
                          braid_damage_callback callback,
                          void *data,
                          braid_verify_report *report);

// Prints a database that nobody has open, for people to read: its properties, its pages, and the transactions of its
// log. The text, in UTF-8, goes to `write` piece by piece, on this thread.
//
// # Safety
//
// `path` is NULL or a string that ends with a NUL; `write` may be called with `data` and must not unwind or jump out.
braid_status braid_dump(const char *path,
                        braid_write_callback write,
                        void *data);

// Makes several writes as one transaction and commits it: all of them are durable when this returns `BRAID_OK`, and
// none was made if it returns anything else. They are made in their order, and again if another transaction is in
// the way (`BRAID_CONFLICT`), at most 1,000 times. `seqno`, which may be NULL, is set to the
// transaction's place in the serial order. After `BRAID_POISONED` only opening the database again
// tells whether they survive.
//
// # Safety
//
// `writes` points to `count` writes, or is NULL if there are none; the `data` of their keys and values points to `len`
// bytes, or is NULL if there are none; `seqno` is NULL or points to where the number fits.
braid_status braid_db_write(braid_db *db,
                            const braid_write *writes,
                            size_t count,
                            uint64_t *seqno);

// Makes several writes as one transaction, as `braid_db_write` does, and does not wait until they are durable: they
// are visible to other transactions, and the ticket tells when they are. `ticket` may be NULL: then nobody is told,
// and they become durable all the same. The ticket is freed with `braid_ticket_free`.
//
// # Safety
//
// That of `braid_db_write`; `ticket` is NULL or points to where a handle fits.
braid_status braid_db_write_async(braid_db *db,
                                  const braid_write *writes,
                                  size_t count,
                                  braid_ticket **ticket);

// Makes several writes as one transaction, as `braid_db_write_async` does, and sets `seqno` to the
// transaction's place in the serial order instead of giving a ticket: `braid_db_wait` waits for
// it, and there is nothing to free. It costs a little less.
//
// # Safety
//
// That of `braid_db_write`; `seqno` is NULL or points to where it fits.
braid_status braid_db_submit(braid_db *db,
                             const braid_write *writes,
                             size_t count,
                             uint64_t *seqno);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* BRAID_H */
