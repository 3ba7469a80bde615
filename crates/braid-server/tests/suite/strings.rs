//! Strings, numbers and bits.

use super::support::{TestServer, script};

#[test]
fn strings_are_set_read_and_changed() {
    let server = TestServer::new();
    script(
        &mut server.connect(),
        "
        GET a => nil
        SET a 1 => OK
        GET a => 1
        SET a 2 NX => nil
        SET b 2 XX => nil
        SET a 2 XX GET => 1
        SET a 3 NX XX => (ERR)
        SET a 3 EX 0 => (ERR)
        SET a 3 EX 10 KEEPTTL => (ERR)
        SETNX a 4 => 0
        SETNX b 4 => 1
        GETSET b 5 => 4
        GETDEL b => 5
        GETDEL b => nil
        APPEND a xyz => 4
        STRLEN a => 4
        GETRANGE a 1 -2 => xy
        GETRANGE a 3 1 => 
        SETRANGE a 2 __ => 4
        GET a => 2x__
        SETRANGE n 3 x => 4
        STRLEN n => 4
        MSET c 1 d 2 => OK
        MSET c 1 d => (ERR)
        MGET c d e => [1 2 nil]
        MSETNX e 1 c 9 => 0
        EXISTS e => 0
        MSETNX e 1 f 9 => 1
        GETEX e EX 100 => 1
        TTL e => ~100
        GETEX e PERSIST => 1
        TTL e => -1
        LPUSH l 1 => 1
        GET l => (WRONGTYPE)
        APPEND l 1 => (WRONGTYPE)
        SET l 1 GET => (WRONGTYPE)
        SET l 1 => OK
        TYPE l => string
        LCS c d => 
        MSET k1 ohmytext k2 mynewtext => OK
        LCS k1 k2 => mytext
        LCS k1 k2 LEN => 6
        LCS k1 k2 IDX MINMATCHLEN 4 => [matches [[[4 7] [5 8]]] len 6]
        SELECT 5 => OK
        SET m 1 => OK
        MEMORY USAGE m => 27
        ",
    );
}

#[test]
fn numbers_do_not_overflow() {
    let server = TestServer::new();
    script(
        &mut server.connect(),
        "
        INCR n => 1
        INCRBY n 41 => 42
        DECRBY n 2 => 40
        DECR n => 39
        SET n 9223372036854775807 => OK
        INCR n => (ERR)
        GET n => 9223372036854775807
        DECRBY n -9223372036854775808 => (ERR)
        SET n 01 => OK
        INCR n => (ERR)
        SET n x => OK
        INCR n => (ERR)
        INCRBYFLOAT n 1 => (ERR)
        SET n 10.5 => OK
        INCRBYFLOAT n 0.1 => 10.6
        INCRBYFLOAT n -5 => 5.6
        INCRBYFLOAT n 5.0e3 => 5005.6
        INCRBYFLOAT n inf => (ERR)
        INCRBYFLOAT n nan => (ERR)
        ",
    );
}

#[test]
fn bits() {
    let server = TestServer::new();
    script(
        &mut server.connect(),
        "
        SETBIT b 7 1 => 0
        GETBIT b 7 => 1
        GETBIT b 100 => 0
        STRLEN b => 1
        SETBIT b 7 2 => (ERR)
        SETBIT b 4294967296 1 => (ERR)
        SET s foobar => OK
        BITCOUNT s => 26
        BITCOUNT s 0 0 => 4
        BITCOUNT s 5 30 BIT => 17
        BITCOUNT s 1 => (ERR)
        BITPOS s 0 => 0
        BITPOS s 1 => 1
        BITPOS missing 1 => -1
        BITPOS missing 0 => 0
        SET x abc => OK
        SET y abd => OK
        BITOP AND z x y => 3
        GET z => ab`
        BITOP NOT z x y => (ERR)
        BITOP XOR z x x => 3
        BITCOUNT z => 0
        BITOP OR z missing => 0
        EXISTS z => 0
        BITFIELD f SET u8 0 255 GET i8 0 GET u4 #1 => [0 -1 15]
        BITFIELD f INCRBY u8 0 1 OVERFLOW SAT INCRBY u8 0 -1 => [0 0]
        BITFIELD f OVERFLOW FAIL INCRBY u8 0 -1 SET i5 8 16 => [nil nil]
        BITFIELD z OVERFLOW SAT SET u4 0 -5 GET u4 0 SET i4 4 -100 GET i4 4 => [0 15 0 -8]
        BITFIELD z OVERFLOW FAIL SET u4 0 -5 => [nil]
        BITFIELD z SET u4 0 -5 GET u4 0 OVERFLOW SAT INCRBY u4 0 -50 => [15 11 0]
        DEL z => 1
        BITFIELD f SET i64 #0 -2 GET i64 0 GET u63 1 => [0 -2 9223372036854775806]
        BITFIELD f SET i8 60 -1 GET i16 56 STRLEN f => (ERR)
        BITFIELD f SET i8 60 -1 GET i16 56 => [-32 -16]
        STRLEN f => 9
        BITFIELD f GET u64 0 => (ERR)
        BITFIELD_RO f GET i8 0 => [-1]
        BITFIELD_RO f SET u8 0 1 => (ERR)
        ",
    );
}

/// SET without options does not decode what it replaces if that is a string that lasts.
#[test]
fn set_replaces_whatever_a_key_holds() {
    let server = TestServer::new();
    script(
        &mut server.connect(),
        "
        SET new 1 => OK
        SET new 2 => OK
        GET new => 2
        DBSIZE => 1
        SET timed 1 EX 100 => OK
        SET timed 2 => OK
        TTL timed => -1
        GET timed => 2
        SET soon 1 PX 1 => OK
        SET soon 2 => OK
        TTL soon => -1
        GET soon => 2
        HSET hash f 1 => 1
        SET hash text => OK
        HSET hash f 1 => (WRONGTYPE)
        DEL hash => 1
        HGETALL hash => []
        XADD stream 1-1 f 1 => 1-1
        SET stream text => OK
        TYPE stream => string
        DBSIZE => 4
        ",
    );
}
