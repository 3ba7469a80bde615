//! Hashes, lists, sets and sorted sets.

use super::support::{TestServer, run, script, try_run};

#[test]
fn errors_name_their_command() {
    let server = TestServer::new();
    let mut raw = server.raw();
    raw.send("ZUNION 0 a\r\nZUNIONSTORE d 0 a\r\nZINTERSTORE d 0 a\r\nZDIFF 0 a\r\n");
    for name in ["zunion", "zunionstore", "zinterstore", "zdiff"] {
        assert_eq!(
            raw.line(),
            format!("-ERR at least 1 input key is needed for '{name}' command")
        );
    }
}

#[test]
fn hashes() {
    let server = TestServer::new();
    script(
        &mut server.connect(),
        "
        HSET h a 1 b 2 => 2
        HSET h a 3 c 4 => 1
        HSET h a => (ERR)
        HGET h a => 3
        HGET h missing => nil
        HMGET h a x c => [3 nil 4]
        HMGET missing a => [nil]
        HLEN h => 3
        HSTRLEN h a => 1
        HEXISTS h a => 1
        HSETNX h a 9 => 0
        HSETNX h d 9 => 1
        HINCRBY h a 5 => 8
        HINCRBY h new 5 => 5
        HINCRBYFLOAT h a 0.5 => 8.5
        HSET h text x => 1
        HINCRBY h text 1 => (ERR)
        HDEL h a b x => 2
        HDEL h c d new text => 4
        EXISTS h => 0
        HGETALL h => []
        HRANDFIELD h => nil
        HRANDFIELD h 3 => []
        HSET h f v => 1
        HRANDFIELD h -2 WITHVALUES => [[f v] [f v]]
        HSCAN h 0 => [0 [f v]]
        HKEYS h => [f]
        HVALS h => [v]
        SET s 1 => OK
        HGET s a => (WRONGTYPE)
        ",
    );
}

#[test]
fn lists() {
    let server = TestServer::new();
    script(
        &mut server.connect(),
        "
        LPUSHX l 1 => 0
        RPUSH l b c d => 3
        LPUSH l a => 4
        LRANGE l 0 -1 => [a b c d]
        LRANGE l -2 9 => [c d]
        LRANGE l 5 9 => []
        LINDEX l 0 => a
        LINDEX l -1 => d
        LINDEX l 4 => nil
        LSET l 1 B => OK
        LSET l 9 B => (ERR)
        LINSERT l BEFORE B x => 5
        LINSERT l AFTER d y => 6
        LINSERT l AFTER nope y => -1
        LRANGE l 0 -1 => [a x B c d y]
        LREM l 0 c => 1
        RPUSH l a a b a => 9
        LREM l -2 a => 2
        LRANGE l 0 -1 => [a x B d y a b]
        LPOS l a => 0
        LPOS l a RANK -1 => 5
        LPOS l a COUNT 0 => [0 5]
        LPOS l a RANK 0 => (ERR)
        LPOS l zz => nil
        LTRIM l 1 -2 => OK
        LRANGE l 0 -1 => [x B d y a]
        LPOP l => x
        RPOP l 2 => [a y]
        LPOP l 0 => []
        LMOVE l m LEFT RIGHT => B
        RPOPLPUSH l m => d
        EXISTS l => 0
        LRANGE m 0 -1 => [d B]
        RPOPLPUSH m m => B
        LRANGE m 0 -1 => [B d]
        LMPOP 2 l m RIGHT COUNT 5 => [m [d B]]
        LMPOP 2 l m RIGHT => nil
        LMPOP 0 LEFT => (ERR)
        LPOP l => nil
        LTRIM l 0 1 => OK
        RPUSH l 1 => 1
        LTRIM l 5 9 => OK
        EXISTS l => 0
        ",
    );
}

#[test]
fn sets() {
    let server = TestServer::new();
    script(
        &mut server.connect(),
        "
        SADD a 1 2 2 3 => 3
        SADD b 3 4 => 2
        SCARD a => 3
        SISMEMBER a 2 => 1
        SMISMEMBER a 2 9 => [1 0]
        SREM a 2 9 => 1
        SMOVE a b 1 => 1
        SMOVE a b 1 => 0
        SMEMBERS a => [3]
        SINTER a b => [3]
        SINTERCARD 2 a b => 1
        SINTERCARD 2 a b LIMIT 0 => 1
        SDIFF a b => []
        SINTER a missing => []
        SUNIONSTORE c a b => 3
        SCARD c => 3
        SDIFFSTORE c a b => 0
        EXISTS c => 0
        SPOP a => 3
        SPOP a => nil
        SPOP a 2 => []
        EXISTS a => 0
        SRANDMEMBER b 0 => []
        SPOP b -1 => (ERR)
        SSCAN missing 0 => [0 []]
        ",
    );
}

#[test]
fn sorted_sets() {
    let server = TestServer::new();
    script(
        &mut server.connect(),
        "
        ZADD z 1 a 2 b 3 c => 3
        ZADD z NX 9 a 4 d => 1
        ZADD z XX CH 5 a 9 x => 1
        ZADD z GT 1 a => 0
        ZADD z LT INCR -1 a => 4
        ZADD z NX XX 1 a => (ERR)
        ZADD z nan a => (ERR)
        ZADD z 1 => (ERR)
        ZSCORE z a => 4
        ZMSCORE z a x => [4 nil]
        ZRANGE z 0 -1 => [b c a d]
        ZRANGE z 0 -1 REV => [d a c b]
        ZRANGE z 0 0 WITHSCORES => [b 2]
        ZREVRANGE z 0 1 => [d a]
        ZRANK z a => 2
        ZREVRANK z a => 1
        ZRANK z x => nil
        ZRANGEBYSCORE z (2 4 => [c a d]
        ZRANGEBYSCORE z -inf +inf LIMIT 1 2 => [c a]
        ZREVRANGEBYSCORE z +inf 3 => [d a c]
        ZRANGE z +inf -inf BYSCORE REV LIMIT 1 2 => [a c]
        ZCOUNT z 3 4 => 3
        ZCOUNT z (4 +inf => 0
        ZCOUNT z x 4 => (ERR)
        ZINCRBY z 1.5 b => 3.5
        ZREMRANGEBYRANK z 0 0 => 1
        ZREMRANGEBYSCORE z 4 4 => 2
        ZREM z b c => 1
        EXISTS z => 0
        ZADD l 0 a 0 b 0 c 0 d => 4
        ZRANGEBYLEX l - + => [a b c d]
        ZRANGEBYLEX l [b (d => [b c]
        ZREVRANGEBYLEX l (d [b => [c b]
        ZLEXCOUNT l (a + => 3
        ZRANGEBYLEX l b d => (ERR)
        ZREMRANGEBYLEX l [a [b => 2
        ZPOPMIN l => [c 0]
        ZPOPMAX l 5 => [d 0]
        ZPOPMIN l => []
        ZADD m 1 a 2 b => 2
        ZADD n 10 b 20 c => 2
        ZUNIONSTORE o 2 m n WEIGHTS 2 1 => 3
        ZRANGE o 0 -1 WITHSCORES => [a 2 b 14 c 20]
        ZINTER 2 m n WITHSCORES AGGREGATE MAX => [b 10]
        ZDIFF 2 m n => [a]
        ZINTERCARD 2 m n => 1
        ZRANGESTORE p o 1 -1 => 2
        ZRANGE p 0 -1 => [b c]
        ZMPOP 1 p MIN => [p [[b 14]]]
        ZRANDMEMBER p 5 WITHSCORES => [c 20]
        SADD s a => 1
        ZUNION 2 m s WITHSCORES => [a 2 b 2]
        ZADD y 1 a1 2 a2 3 a3 => 3
        ZRANGE y [a2 (a4 BYLEX LIMIT 0 1 => [a2]
        ZRANGE y + [a2 BYLEX REV => [a3 a2]
        ZRANGEBYSCORE y -inf +inf LIMIT 5 1 => []
        ZRANGEBYSCORE y -inf +inf LIMIT 1 0 => []
        ZREVRANGEBYSCORE y 3 1 LIMIT 2 5 => [a1]
        ZADD m inf big -inf small => 2
        ZRANGE m 0 -1 WITHSCORES => [small -inf a 1 b 2 big inf]
        ",
    );
}

#[test]
fn a_range_by_member_is_empty_if_its_first_bound_is_not_below_its_last() {
    let server = TestServer::new();
    let connection = &mut server.connect();
    script(
        connection,
        "ZADD z 1 a 2 b 3 c => 3
         ZREMRANGEBYLEX z (a - => 0
         ZREMRANGEBYLEX z + ( => 0
         ZLEXCOUNT z ( ( => 0
         ZLEXCOUNT z - + => 3
         ZRANGEBYLEX z [b + => [b c]
         ZRANGEBYLEX z - (c => [a b]
         SET s text => OK
         GETRANGE s -10 -5 => t
         GETRANGE s -5 -10 =>",
    );
}

/// What a transaction has learned of the index of ranks is wrong once its changes are undone.
#[test]
fn ranks_are_right_after_changes_that_were_undone() {
    const MEMBERS: u32 = 400;
    let server = TestServer::new();
    let mut client = server.connect();
    let add = |scale: u32| {
        let pair = |member| format!(" {} m{member}", member * scale % 1009);
        let pairs: String = (0..MEMBERS).map(pair).collect();
        format!("ZADD z{pairs}")
    };
    run::<()>(&mut client, &add(1));
    for scale in [2, 3, 5] {
        for command in ["MULTI", &add(scale), "LPUSH z x"] {
            run::<()>(&mut client, command);
        }
        // The second command fails, so that the first runs twice.
        let _: redis::RedisResult<redis::Value> = try_run(&mut client, "EXEC");
        assert_eq!(run::<u32>(&mut client, "ZSCORE z m399"), 399 * scale % 1009);
        let members: Vec<String> = run(&mut client, "ZRANGE z 0 -1");
        assert_eq!(members.len(), MEMBERS as usize);
        for (rank, member) in members.iter().enumerate() {
            assert_eq!(
                run::<usize>(&mut client, &format!("ZRANK z {member}")),
                rank
            );
        }
    }
}
