/* WiredTiger's API is structures of function pointers, whose layout differs between versions. These functions,
 * compiled against the installed header, are what the benchmark needs of it. Each returns WiredTiger's own
 * error, 0 for none. Pointers must be those that the open functions gave, not yet closed. */

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <wiredtiger.h>

const int braid_wt_rollback = WT_ROLLBACK;
const int braid_wt_notfound = WT_NOTFOUND;
const int braid_wt_busy = EBUSY;

int braid_wt_open(const char *home, const char *config, WT_CONNECTION **connection)
{
    return wiredtiger_open(home, NULL, config, connection);
}

int braid_wt_close(WT_CONNECTION *connection)
{
    return connection->close(connection, NULL);
}

int braid_wt_session(WT_CONNECTION *connection, WT_SESSION **session)
{
    return connection->open_session(connection, NULL, NULL, session);
}

int braid_wt_session_close(WT_SESSION *session)
{
    return session->close(session, NULL);
}

int braid_wt_create(WT_SESSION *session, const char *uri, const char *config)
{
    return session->create(session, uri, config);
}

int braid_wt_checkpoint(WT_SESSION *session, const char *config)
{
    return session->checkpoint(session, config);
}

int braid_wt_drop(WT_SESSION *session, const char *uri)
{
    return session->drop(session, uri, NULL);
}

int braid_wt_compact(WT_SESSION *session, const char *uri)
{
    return session->compact(session, uri, NULL);
}

int braid_wt_verify(WT_SESSION *session, const char *uri)
{
    return session->verify(session, uri, NULL);
}

int braid_wt_reconfigure(WT_CONNECTION *connection, const char *config)
{
    return connection->reconfigure(connection, config);
}

int braid_wt_begin(WT_SESSION *session, const char *config)
{
    return session->begin_transaction(session, config);
}

int braid_wt_commit(WT_SESSION *session)
{
    return session->commit_transaction(session, NULL);
}

int braid_wt_rollback_transaction(WT_SESSION *session)
{
    return session->rollback_transaction(session, NULL);
}

/* Closed with its session. */
int braid_wt_cursor(WT_SESSION *session, const char *uri, const char *config, WT_CURSOR **cursor)
{
    return session->open_cursor(session, uri, NULL, config, cursor);
}

int braid_wt_cursor_close(WT_CURSOR *cursor)
{
    return cursor->close(cursor);
}

/* For a cursor over names. The string lives until the cursor moves. */
int braid_wt_name(WT_CURSOR *cursor, const char **name)
{
    return cursor->get_key(cursor, name);
}

static void set_key(WT_CURSOR *cursor, const void *key, size_t key_len)
{
    WT_ITEM item = {.data = key, .size = key_len};
    cursor->set_key(cursor, &item);
}

/* Leaves the cursor at the key. */
int braid_wt_search(WT_CURSOR *cursor, const void *key, size_t key_len)
{
    set_key(cursor, key, key_len);
    return cursor->search(cursor);
}

/* Leaves the cursor at a key next to the one given, and says on which side. */
int braid_wt_search_near(WT_CURSOR *cursor, const void *key, size_t key_len, int *side)
{
    set_key(cursor, key, key_len);
    return cursor->search_near(cursor, side);
}

int braid_wt_next(WT_CURSOR *cursor)
{
    return cursor->next(cursor);
}

int braid_wt_prev(WT_CURSOR *cursor)
{
    return cursor->prev(cursor);
}

int braid_wt_reset(WT_CURSOR *cursor)
{
    return cursor->reset(cursor);
}

/* The bytes live until the cursor moves. */
int braid_wt_key(WT_CURSOR *cursor, const void **key, size_t *key_len)
{
    WT_ITEM item;
    int error = cursor->get_key(cursor, &item);
    if (error == 0) {
        *key = item.data;
        *key_len = item.size;
    }
    return error;
}

/* The same. */
int braid_wt_value(WT_CURSOR *cursor, const void **value, size_t *value_len)
{
    WT_ITEM item;
    int error = cursor->get_value(cursor, &item);
    if (error == 0) {
        *value = item.data;
        *value_len = item.size;
    }
    return error;
}

int braid_wt_put(WT_CURSOR *cursor, const void *key, size_t key_len, const void *value, size_t value_len)
{
    WT_ITEM item = {.data = value, .size = value_len};
    set_key(cursor, key, key_len);
    cursor->set_value(cursor, &item);
    return cursor->insert(cursor);
}

int braid_wt_remove(WT_CURSOR *cursor, const void *key, size_t key_len)
{
    set_key(cursor, key, key_len);
    return cursor->remove(cursor);
}
