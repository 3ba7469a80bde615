//! EVAL, SCRIPT, FUNCTION and FCALL.

use std::collections::BTreeMap;

use braid::Database;
use redis::{Connection, RedisResult, Value};

use super::support::{TestServer, run, script, show, text};

/// Runs a script, and returns its reply as text.
fn eval(connection: &mut Connection, code: &str, rest: &str) -> String {
    let mut command = redis::cmd("EVAL");
    command.arg(code);
    for word in rest.split_whitespace() {
        command.arg(word);
    }
    shown(command.query(connection))
}

fn shown(answer: RedisResult<Value>) -> String {
    match answer {
        Ok(value) => text(&value),
        Err(error) => format!(
            "({} {})",
            error.code().unwrap_or("?"),
            error.detail().unwrap_or_default()
        ),
    }
}

/// Scripts whose answers are those of Redis. Each has a number of keys, keys, and arguments.
const SCRIPTS: &[(&str, &str)] = &[
    ("return 1", "0"),
    ("return 3.99", "0"),
    ("return -3.99", "0"),
    ("return 'text'", "0"),
    ("return true", "0"),
    ("return false", "0"),
    ("return nil", "0"),
    ("return {1,2,{3,'four'},nil,5}", "0"),
    ("return {ok='fine'}", "0"),
    ("return redis.status_reply('TEST')", "0"),
    ("return {KEYS[1],KEYS[2],ARGV[1],#ARGV}", "2 a b c d"),
    ("return redis.call('set',KEYS[1],'x')", "1 a"),
    ("return redis.call('get',KEYS[1])", "1 a"),
    ("return redis.call('get','missing')", "0"),
    ("return type(redis.call('get','missing'))", "0"),
    ("return redis.call('incrby','n',5)", "0"),
    ("return redis.call('set','f',1.5)", "0"),
    ("return redis.call('get','f')", "0"),
    ("return redis.call('rpush','l',1,2,3)", "0"),
    ("return redis.call('lrange','l',0,-1)", "0"),
    ("return redis.call('hset','h','a',1,'b',2)", "0"),
    ("return redis.call('hget','h','b')", "0"),
    ("return redis.call('zadd','z',1,'a',2.5,'b')", "0"),
    ("return redis.call('zrange','z',0,-1,'WITHSCORES')", "0"),
    ("return redis.pcall('nosuchcommand').err ~= nil", "0"),
    ("local r = redis.pcall('incr','l'); return r.err", "0"),
    (
        "local ok, e = pcall(redis.call,'incr','l'); return {tostring(ok), type(e), e}",
        "0",
    ),
    ("return redis.sha1hex('')", "0"),
    ("return redis.call('ping').ok", "0"),
    (
        "return {redis.call('select',3), redis.call('set','elsewhere',1)}",
        "0",
    ),
    ("return redis.call('exists','elsewhere')", "0"),
    ("return cjson.encode({1,2,3})", "0"),
    ("return cjson.encode({a=1})", "0"),
    (
        "return cjson.encode({{},'x',true,cjson.null,1.5,-7,1e20})",
        "0",
    ),
    ("return cjson.encode('a\"b\\\\/\\n\\1')", "0"),
    ("return cjson.encode(0.1+0.2)", "0"),
    (
        "local t = cjson.decode(ARGV[1]); return {t[1], t[2].a, tostring(t[3]), tostring(t[4]==cjson.null)}",
        "0 [1,{\"a\":\"x\"},true,null]",
    ),
    ("return {pcall(cjson.decode, '[')}[1]", "0"),
    ("return type(select(2,pcall(cjson.decode,'[')))", "0"),
    (
        "local a = {}; a[1]=1 a[30]=2; return tostring(pcall(cjson.encode, a))",
        "0",
    ),
    (
        "return redis.sha1hex(cmsgpack.pack(1,-1,300,-300,70000,5000000000,1.5,0.1,'a',true,false,{1,2,3},{a={b='c'}}))",
        "0",
    ),
    (
        "return {cmsgpack.unpack(cmsgpack.pack('a',{1,{2}},-5))}",
        "0",
    ),
    (
        "local t = cmsgpack.unpack(cmsgpack.pack({a={1,2},b='x'})); return {t.a[2], t.b}",
        "0",
    ),
    ("return {cmsgpack.unpack_one(cmsgpack.pack(1,2,3))}", "0"),
    (
        "return {cmsgpack.unpack_limit(cmsgpack.pack(1,2,3), 2, 1)}",
        "0",
    ),
    (
        "return redis.sha1hex(struct.pack('>bBhHiIlLfd', -1,200,-300,60000,-70000,3000000000,-5,5,1.5,2.5))",
        "0",
    ),
    (
        "return redis.sha1hex(struct.pack('<i3s', -2,'abc') .. struct.pack('>I2c0', 3, 'xyz'))",
        "0",
    ),
    ("return {struct.unpack('>I2c0', '\\0\\3xyz')}", "0"),
    (
        "return {struct.unpack('<hb', struct.pack('<hb', -2, -3))}",
        "0",
    ),
    ("return struct.size('>I2i4d')", "0"),
    (
        "return {bit.band(7,12), bit.bor(1,8), bit.bxor(5,1), bit.bnot(0), bit.lshift(1,31), bit.rshift(-1,28), bit.arshift(-16,2)}",
        "0",
    ),
    (
        "return {bit.tohex(255), bit.tohex(-1,4), bit.tohex(48879,-4), bit.rol(1,33), bit.bswap(1)}",
        "0",
    ),
    ("return {bit.tobit(4294967295), bit.tobit(2147483648)}", "0"),
    ("return math.floor(2.7) + string.len('abc')", "0"),
    ("return table.concat({1,2,3},',')", "0"),
    ("return tostring(#table.pack and 1)", "1"),
    ("return", "1 a b"),
    ("return 1", "-1"),
    ("return 1", "2 a"),
    ("return 1", "x"),
];

/// Compares with Redis if that is installed; otherwise the answers only have to be answers.
#[test]
fn scripts_answer_as_in_redis() {
    let server = TestServer::new();
    let ours = &mut server.connect();
    let theirs = super::support::redis_server();
    let Some((redis, _process)) = theirs else {
        println!("SKIPPED: redis-server is not installed");
        return;
    };
    let mut theirs = redis.get_connection().unwrap();
    for (code, rest) in SCRIPTS {
        let expected = eval(&mut theirs, code, rest);
        let answer = eval(ours, code, rest);
        if expected.starts_with('(') {
            // Texts of errors differ.
            assert_eq!(
                answer.split(' ').next(),
                expected.split(' ').next(),
                "{code}: {answer}"
            );
        } else {
            assert_eq!(answer, expected, "{code}");
        }
    }
}

#[test]
fn a_script_that_fails_changes_nothing() {
    let server = TestServer::new();
    let connection = &mut server.connect();
    script(connection, "SET a 1\nRPUSH l x => 1");
    for code in [
        "redis.call('set','a',2) redis.call('incr','l')",
        "redis.call('set','a',2) error('no')",
        "redis.call('set','a',2) error({err='MINE no'})",
        "redis.call('set','a',2) return redis.error_reply('MINE no')",
        "redis.call('set','a',2) return redis.pcall('incr','l')",
        "redis.call('set','a',2) return nosuchvariable",
        "redis.call('set','a',2) redis.call('del','l') redis.call('flushall') local x = nil; x()",
    ] {
        let answer = eval(connection, code, "0");
        assert!(answer.starts_with('('), "{code}: {answer}");
        script(connection, "GET a => 1\nLLEN l => 1\nDBSIZE => 2");
    }
    // A command that fails and is caught changes nothing itself.
    let code = "redis.pcall('lpush','a','x') redis.call('incr','a') return redis.call('get','a')";
    assert_eq!(eval(connection, code, "0"), "2");
    // In a transaction the others take effect.
    let mut raw = server.raw();
    raw.send("MULTI\r\nINCR a\r\n");
    raw.send("*3\r\n$4\r\nEVAL\r\n$34\r\nredis.call('incr','a') error('no')\r\n$1\r\n0\r\n");
    raw.send("*3\r\n$4\r\nEVAL\r\n$29\r\nreturn redis.call('incr','a')\r\n$1\r\n0\r\nEXEC\r\n");
    let lines = raw.lines(8);
    assert_eq!(
        lines[..6],
        ["+OK", "+QUEUED", "+QUEUED", "+QUEUED", "*3", ":3"]
    );
    assert!(
        lines[6].starts_with("-ERR user_script:1: no"),
        "{}",
        lines[6]
    );
    assert_eq!(lines[7], ":4");
}

#[test]
fn errors_of_scripts() {
    let server = TestServer::new();
    let connection = &mut server.connect();
    run::<()>(connection, "RPUSH l x");
    for (code, expected) in [
        ("return {err='MINE text'}", "(MINE text)"),
        ("return redis.error_reply('short')", "(ERR short)"),
        (
            "return redis.call('incr','l')",
            "(WRONGTYPE Operation against",
        ),
        ("error('text')", "(ERR user_script:1: text script: "),
        ("\n\nerror('text')", "(ERR user_script:3: text script: "),
        (
            "return x",
            "(ERR user_script:1: Script attempted to access nonexistent global variable 'x'",
        ),
        (
            "x = 1",
            "(ERR user_script:1: Attempt to modify a readonly table",
        ),
        (
            "return (",
            "(ERR Error compiling script (new function): user_script:1: ",
        ),
        ("redis.call()", "(ERR Please specify at least one argument"),
        ("redis.call('set')", "(ERR Wrong number of args"),
        (
            "redis.call('set','a',{})",
            "(ERR Lua redis lib command arguments must be",
        ),
        ("redis.call('nosuch')", "(ERR Unknown Redis command"),
        (
            "redis.call('multi')",
            "(ERR This Redis command is not allowed",
        ),
        (
            "redis.call('eval','return 1',0)",
            "(ERR This Redis command is not allowed",
        ),
        (
            "redis.call('auth','x')",
            "(ERR This Redis command is not allowed",
        ),
        (
            "redis.call('quit')",
            "(ERR This Redis command is not allowed",
        ),
        (
            "local t = {} for i = 1, 200 do t = {t} end return t",
            "(ERR the result of the script is nested",
        ),
    ] {
        let answer = eval(connection, code, "0");
        assert!(answer.starts_with(expected), "{code}: {answer}");
    }
}

#[test]
fn scripts_stay_in_their_sandbox() {
    let server = TestServer::new();
    let connection = &mut server.connect();
    for name in [
        "io",
        "os.execute",
        "os.exit",
        "os.getenv",
        "os.remove",
        "package",
        "require",
        "module",
        "dofile",
        "loadfile",
        "load",
        "loadstring",
        "debug",
        "getfenv",
        "setfenv",
        "newproxy",
        "print",
        "string.dump",
        "jit",
        "ffi",
    ] {
        let answer = eval(
            connection,
            &format!("return {name} == nil and 'none' or 'there'"),
            "0",
        );
        assert!(
            answer == "none" || answer.contains("nonexistent global variable"),
            "{name}: {answer}"
        );
    }
    // What a script changes, no other script sees.
    for change in [
        "string.rep = function() return 'evil' end",
        "redis.call = nil",
        "rawset(string, 'rep', function() return 'evil' end)",
        "rawset(_G, 'string', {rep = function() return 'evil' end})",
        "rawset(redis, 'call', function() return 'evil' end)",
        "getmetatable('').__index.rep = function() return 'evil' end",
        "getmetatable('').__index = {}",
        "getmetatable(_G).__index = function() return 'evil' end",
        "setmetatable(_G, {})",
        "setmetatable(string, {})",
        "setmetatable(redis, nil)",
        "for _, t in ipairs({string, table, math, redis, cjson}) do table.insert(t, 'evil') end",
        "KEYS = nil ARGV = 'evil'",
        "collectgarbage('stop')",
        "table.insert(_G, 'evil')",
    ] {
        let _ = eval(connection, change, "0");
        let check = "return {('ab'):rep(2), string.rep('x',2), type(redis.call), tostring(rawget(_G, 1)), tostring(rawget(string, 1)), #KEYS}";
        assert_eq!(
            eval(connection, check, "0"),
            "[abab xx function nil nil 0]",
            "{change}"
        );
    }
}

#[test]
fn scripts_have_limits() {
    let server = TestServer::with(Database::in_memory().unwrap(), |options| {
        options.lua_time_limit = std::time::Duration::from_millis(100);
    });
    let connection = &mut server.connect();
    for code in [
        "redis.call('set','a',1) while true do end",
        "redis.call('set','a',1) while true do pcall(function() while true do end end) end",
        "redis.call('set','a',1) while true do xpcall(function() while true do end end, function() end) end",
        "redis.call('set','a',1) local f = coroutine.wrap(function() while true do end end) while true do pcall(f) end",
        "redis.call('set','a',1) while true do coroutine.resume(coroutine.create(function() while true do end end)) end",
        "while true do redis.pcall('set','a',1) end",
    ] {
        let answer = eval(connection, code, "0");
        assert!(
            answer.contains("longer than lua-time-limit"),
            "{code}: {answer}"
        );
    }
    script(connection, "EXISTS a => 0");
    // On a busy machine, memory may take longer than the limit of time to run out.
    let server = TestServer::with(Database::in_memory().unwrap(), |options| {
        options.script_memory_limit = 4 << 20;
        options.lua_time_limit = std::time::Duration::from_secs(600);
    });
    let connection = &mut server.connect();
    for code in [
        "local t = {} for i = 1, 1e9 do t[i] = i end",
        "local s = 'x' while true do s = s .. s end",
        "return string.rep('x', 1e9)",
        "return redis.call('set', 'a', string.rep('x', 100000000))",
    ] {
        let answer = eval(connection, code, "0");
        assert!(answer.contains("memory"), "{code}: {answer}");
    }
    assert_eq!(
        eval(
            connection,
            "return {#string.rep('x', 100000), redis.call('exists','a')}",
            "0"
        ),
        "[100000 0]"
    );
    // Endless recursion ends, too.
    let answer = eval(
        connection,
        "local function f() return 1 + f() end return f()",
        "0",
    );
    assert!(answer.starts_with("(ERR"), "{answer}");
}

#[test]
fn scripts_are_killed() {
    let server = TestServer::with(Database::in_memory().unwrap(), |options| {
        options.lua_time_limit = std::time::Duration::from_secs(600);
    });
    // Connections are given to the two threads in turn.
    let mut raw = server.raw();
    let admin = &mut server.connect();
    script(
        admin,
        "SCRIPT KILL => (NOTBUSY)\nFUNCTION KILL => (NOTBUSY)",
    );
    let code = "redis.call('set','a',1) while true do end";
    raw.send(format!(
        "*3\r\n$4\r\nEVAL\r\n${}\r\n{code}\r\n$1\r\n0\r\n",
        code.len()
    ));
    while show(admin, "SCRIPT KILL") != "OK" {}
    assert!(raw.line().contains("killed by SCRIPT KILL"));
    script(admin, "EXISTS a => 0");
}

#[test]
fn rules_apply_inside_scripts() {
    let server = TestServer::new();
    let admin = &mut server.connect();
    run::<()>(
        admin,
        "ACL SETUSER ann on nopass -@all +@scripting +get +set ~in:* %R~only:* &chan",
    );
    let ann = &mut server.connect();
    run::<()>(ann, "AUTH ann x");
    for (code, rest, expected) in [
        ("return redis.call('set',KEYS[1],1)", "1 in:a", "OK"),
        ("return redis.call('set',KEYS[1],1)", "1 out:a", "(NOPERM"),
        // Keys that are not announced are checked as well.
        ("return redis.call('set','out:a',1)", "0", "(NOPERM"),
        ("return redis.call('get','only:a')", "0", "nil"),
        ("return redis.call('set','only:a',1)", "0", "(NOPERM"),
        ("return redis.call('incr','in:a')", "0", "(NOPERM"),
        ("return redis.call('flushall')", "0", "(NOPERM"),
        ("return redis.call('publish','chan','x')", "0", "(NOPERM"),
        (
            "return tostring(redis.acl_check_cmd('set','in:b','x'))",
            "0",
            "true",
        ),
        (
            "return tostring(redis.acl_check_cmd('set','out:b','x'))",
            "0",
            "false",
        ),
    ] {
        let answer = eval(ann, code, rest);
        assert!(answer.starts_with(expected), "{code}: {answer}");
    }
    let log = show(admin, "ACL LOG 1");
    assert!(log.contains("lua"), "{log}");
    run::<()>(admin, "ACL SETUSER ann -eval");
    assert!(eval(ann, "return 1", "0").starts_with("(NOPERM"));
}

#[test]
fn scripts_are_kept_by_their_digest() {
    let server = TestServer::new();
    let connection = &mut server.connect();
    let sha = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db";
    let upper = sha.to_uppercase();
    script(connection, &format!("EVALSHA {sha} 0 => (NOSCRIPT)"));
    assert_eq!(eval(connection, "return 1", "0"), "1");
    script(
        connection,
        &format!(
            "
            EVALSHA {sha} 0 => 1
            EVALSHA_RO {upper} 0 => 1
            SCRIPT EXISTS {sha} {upper} none => [1 1 0]
            SCRIPT FLUSH SYNC
            SCRIPT EXISTS {sha} => [0]
            SCRIPT FLUSH NOW => (ERR)
            SCRIPT NOSUCH => (ERR)
            SCRIPT LOAD => (ERR)
            "
        ),
    );
    let loaded: String = redis::cmd("SCRIPT")
        .arg("LOAD")
        .arg("return 7")
        .query(connection)
        .unwrap();
    script(connection, &format!("EVALSHA {loaded} 0 => 7"));
    let wrong: RedisResult<String> = redis::cmd("SCRIPT")
        .arg("LOAD")
        .arg("return (")
        .query(connection);
    assert!(wrong.is_err());
    // Many scripts do not push out one that was loaded.
    for number in 0..600 {
        assert_eq!(
            eval(connection, &format!("return {number}"), "0"),
            number.to_string()
        );
    }
    script(connection, &format!("EVALSHA {loaded} 0 => 7"));
    let first = "EVALSHA_RO 0 0";
    assert_eq!(show(connection, first), "(NOSCRIPT)");
}

#[test]
fn readonly_scripts_do_not_write() {
    let server = TestServer::new();
    let connection = &mut server.connect();
    run::<()>(connection, "SET a 1");
    let mut eval_ro = |code: &str| shown(redis::cmd("EVAL_RO").arg(code).arg(0).query(connection));
    assert_eq!(eval_ro("return redis.call('get','a')"), "1");
    assert!(eval_ro("return redis.call('set','a',2)").contains("Write commands are not allowed"));
    assert_eq!(
        eval_ro("redis.pcall('set','a',2) return redis.call('get','a')"),
        "1"
    );
    let answer = eval(
        connection,
        "#!lua flags=no-writes\nreturn redis.call('set','a',2)",
        "0",
    );
    assert!(
        answer.contains("Write commands are not allowed"),
        "{answer}"
    );
    assert_eq!(
        eval(connection, "#!lua\nreturn redis.call('get','a')", "0"),
        "1"
    );
    assert!(eval(connection, "#!python\nreturn 1", "0").contains("Unexpected engine"));
    assert!(eval(connection, "#!lua\nerror('x')", "0").contains("user_script:2"));
}

#[test]
fn messages_of_scripts_are_sent_with_their_transaction() {
    let server = TestServer::new();
    let mut raw = server.raw();
    raw.send("SUBSCRIBE c\r\n");
    raw.lines(6);
    let connection = &mut server.connect();
    assert_eq!(
        eval(connection, "return redis.call('publish','c','one')", "0"),
        "1"
    );
    eval(
        connection,
        "redis.call('publish','c','two') error('no')",
        "0",
    );
    let ro = redis::cmd("EVAL_RO")
        .arg("return redis.call('publish','c','three')")
        .arg(0)
        .query(connection);
    // As in Redis, which sends messages to replicas.
    assert!(shown(ro).contains("Write commands are not allowed"));
    eval(connection, "return redis.call('publish','c','four')", "0");
    let lines = raw.lines(14);
    assert_eq!((lines[6].as_str(), lines[13].as_str()), ("one", "four"));
}

#[test]
fn the_newer_protocol() {
    let server = TestServer::new();
    let connection = &mut server.connect_with("?protocol=resp3");
    run::<()>(connection, "HSET h a 1");
    run::<()>(connection, "ZADD z 1.5 m");
    for (code, expected) in [
        (
            "redis.setresp(3) return redis.call('hgetall','h').map.a",
            "1",
        ),
        ("redis.setresp(3) return redis.call('hgetall','h')", "[a 1]"),
        (
            "redis.setresp(3) return redis.call('zscore','z','m')",
            "1.5",
        ),
        (
            "redis.setresp(3) return type(redis.call('get','none'))",
            "nil",
        ),
        ("return redis.call('hgetall','h')", "[a 1]"),
        ("return {double=2.5}", "2.5"),
        ("return {map={x=1}}", "[x 1]"),
        ("return {set={x=true}}", "[x]"),
        (
            "redis.setresp(4)",
            "(ERR RESP version must be 2 or 3. script: ",
        ),
    ] {
        let answer = eval(connection, code, "0");
        assert!(answer.starts_with(expected), "{code}: {answer}");
    }
}

const LIBRARY: &str = "#!lua name=mylib
local function add(keys, args)
    return redis.call('incrby', keys[1], args[1])
end
redis.register_function('add', add)
redis.register_function{function_name='look', callback=function(keys) return redis.call('get', keys[1]) end, flags={'no-writes'}, description='Looks'}
";

fn load(connection: &mut Connection, code: &str) -> String {
    shown(
        redis::cmd("FUNCTION")
            .arg("LOAD")
            .arg(code)
            .query(connection),
    )
}

#[test]
fn functions() {
    let server = TestServer::new();
    let connection = &mut server.connect();
    assert_eq!(load(connection, LIBRARY), "mylib");
    script(
        connection,
        "
        FCALL add 1 n 5 => 5
        FCALL look 1 n => 5
        FCALL_RO look 1 n => 5
        FCALL_RO add 1 n 5 => (ERR)
        FCALL none 0 => (ERR)
        FCALL add 2 n => (ERR)
        MULTI
        FCALL add 1 n 1 => QUEUED
        FUNCTION FLUSH => (ERR)
        DISCARD
        ",
    );
    let listed: Vec<BTreeMap<String, Value>> =
        run(connection, "FUNCTION LIST WITHCODE LIBRARYNAME my*");
    assert_eq!(text(&listed[0]["library_code"]), LIBRARY);
    assert_eq!(text(&listed[0]["functions"]).matches("name").count(), 2);
    let changed = LIBRARY.replace("'get'", "'strlen'");
    let replaced = redis::cmd("FUNCTION")
        .arg("LOAD")
        .arg("REPLACE")
        .arg(changed)
        .query(connection);
    assert_eq!(shown(replaced), "mylib");
    script(
        connection,
        "FCALL look 1 n => 1\nFUNCTION LIST LIBRARYNAME x => []",
    );
    assert!(show(connection, "FUNCTION STATS").contains("libraries_count 1"));
    // What a function defines, no other library and no script sees.
    assert_eq!(
        load(
            connection,
            "#!lua name=other\nredis.register_function('g', function() return redis.register_function('h', function() end) end)"
        ),
        "other"
    );
    script(connection, "FCALL g 0 => (ERR)");
    script(
        connection,
        "FUNCTION DELETE mylib\nFUNCTION DELETE mylib => (ERR)\nFCALL add 1 n 1 => (ERR)",
    );
}

#[test]
fn wrong_libraries_are_refused() {
    let server = TestServer::new();
    let connection = &mut server.connect();
    assert_eq!(load(connection, LIBRARY), "mylib");
    assert!(load(connection, LIBRARY).contains("already exists"));
    for (code, expected) in [
        ("return 1", "Missing library metadata"),
        ("#!lua\nreturn 1", "Library name was not given"),
        ("#!js name=x\n", "Engine 'js' not found"),
        ("#!lua name=a-b\n", "Library names can only"),
        ("#!lua name=x\nreturn 1", "No functions registered"),
        ("#!lua name=x\nreturn (", "Error compiling function"),
        (
            "#!lua name=x\nredis.register_function('add', function() end)",
            "Function add already exists",
        ),
        (
            "#!lua name=x\nredis.register_function('a-b', function() end)",
            "Library names can only",
        ),
        (
            "#!lua name=x\nredis.register_function('f', 1)",
            "second argument",
        ),
        (
            "#!lua name=x\nredis.call('get','a')",
            "nonexistent global variable 'call'",
        ),
        (
            "#!lua name=x\nwhile true do end",
            "longer than lua-time-limit",
        ),
        (
            "#!lua name=x\nx = 1",
            "user_function:2: Attempt to modify a readonly table",
        ),
    ] {
        let answer = load(connection, code);
        assert!(answer.contains(expected), "{code}: {answer}");
    }
    script(connection, "FCALL add 1 n 5 => 5");
}

#[test]
fn libraries_are_dumped_and_restored() {
    let server = TestServer::new();
    let connection = &mut server.connect();
    assert_eq!(load(connection, LIBRARY), "mylib");
    run::<()>(connection, "SET n 5");
    let dumped: Vec<u8> = redis::cmd("FUNCTION")
        .arg("DUMP")
        .query(connection)
        .unwrap();
    script(connection, "FUNCTION FLUSH\nFCALL add 1 n 1 => (ERR)");
    let mut restore = |payload: &[u8], policy: &[&str]| {
        shown(
            redis::cmd("FUNCTION")
                .arg("RESTORE")
                .arg(payload)
                .arg(policy)
                .query(connection),
        )
    };
    assert_eq!(restore(&dumped, &[]), "OK");
    assert!(restore(&dumped, &[]).contains("already exists"));
    assert_eq!(restore(&dumped, &["REPLACE"]), "OK");
    assert_eq!(restore(&dumped, &["FLUSH"]), "OK");
    let mut damaged = dumped.clone();
    damaged[20] ^= 1;
    assert!(restore(&damaged, &["FLUSH"]).contains("checksum"));
    script(connection, "FCALL look 1 n => 5\nFCALL add 1 n 1 => 6");
}

#[test]
fn functions_are_durable() {
    let dir = tempfile::tempdir().unwrap();
    let db = Database::open(dir.path()).unwrap();
    let server = TestServer::with(db.clone(), |_| {});
    assert_eq!(load(&mut server.connect(), LIBRARY), "mylib");
    server.stop();
    db.close().unwrap();
    let db = Database::open(dir.path()).unwrap();
    let server = TestServer::with(db, |_| {});
    script(
        &mut server.connect(),
        "FCALL add 1 n 5 => 5\nFUNCTION DELETE mylib\nFCALL add 1 n 5 => (ERR)",
    );
}

/// Transactions of scripts on the same keys are serializable: nothing is lost.
#[test]
fn scripts_of_several_clients() {
    let server = TestServer::new();
    let code = "local n = tonumber(redis.call('get','a') or 0) redis.call('set','a',n+1) redis.call('set','b',n+1) return n";
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let connection = &mut server.connect();
                for _ in 0..100 {
                    let answer = eval(connection, code, "0");
                    assert!(!answer.starts_with('('), "{answer}");
                }
            });
        }
    });
    script(&mut server.connect(), "MGET a b => [400 400]");
}
