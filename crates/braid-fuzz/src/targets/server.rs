//! Parsers of the server: requests, values of RESTORE, configuration, users, arguments of commands.

use braid_server::fuzzing;

use super::Target;

pub(super) const SERVER_REQUESTS: Target = Target {
    name: "server_requests",
    run: fuzzing::requests,
    corpus: || {
        texts(&[
            "*2\r\n$3\r\nGET\r\n$1\r\na\r\nPING\r\n",
            "*3\r\n$3\r\nSET\r\n$0\r\n\r\n$4\r\na\r\nb\r\n*0\r\n*-1\r\n",
            "SET \"a b\\x41\\n\" 'it\\'s'  \r\n\r\n",
            "*1048576\r\n$1048576\r\n",
            "*1\r\n:1\r\n",
            "*11\r\n$16385\r\n",
        ])
    },
    runs: 3_000,
};

pub(super) const SERVER_SESSION: Target = Target {
    name: "server_session",
    run: fuzzing::session,
    corpus: || {
        texts(&[
            "MULTI\r\nINCR number\r\nLPUSH string a\r\nEXEC\r\n",
            "WATCH a\r\nSET a 1\r\nMULTI\r\nGET a\r\nEXEC\r\n",
            "CLIENT TRACKING ON OPTIN\r\nCLIENT CACHING YES\r\nGET string\r\nSET string 1\r\n",
            "ACL SETUSER u on >p ~a* %R~b +@read -get (+set ~c)\r\nAUTH u p\r\nGET a\r\n",
            "HELLO 3 SETNAME x\r\nSUBSCRIBE a b\r\nPSUBSCRIBE *\r\nPUBLISH a m\r\nRESET\r\n",
            "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$2\r\n\r\n\r\nSORT list ALPHA DESC LIMIT 0 2 STORE new\r\n",
            "SELECT 1\r\nSWAPDB 0 1\r\nFLUSHALL\r\nDBSIZE\r\nCONFIG SET timeout 1\r\nINFO\r\n",
        ])
    },
    runs: 60,
};

pub(super) const SERVER_ARGUMENTS: Target = Target {
    name: "server_arguments",
    run: fuzzing::program,
    corpus: || {
        // Every command, first without arguments and then with more and more words.
        (0..=255u8)
            .step_by(8)
            .map(|start| {
                let mut program = Vec::new();
                for command in start..=start | 7 {
                    program.extend([command, 0, command % 7]);
                    program.extend((0..command % 7).map(|at| command.wrapping_mul(7) ^ at));
                }
                program
            })
            .collect()
    },
    runs: 150,
};

pub(super) const SERVER_RESTORE: Target = Target {
    name: "server_restore",
    run: fuzzing::restore,
    corpus: || {
        let payloads: &[&[u8]] = &[
            // A string, short, as an integer, and compressed.
            b"\x01\x00\x05hello",
            b"\x01\x00\xc0\x07",
            b"\x01\x00\xc3\x05\x0a\x00a\xe0\x00\x00",
            // A list, a set, a hash and a sorted set in their plain forms.
            b"\x01\x01\x02\x01a\x01b",
            b"\x01\x02\x02\x01a\x01b",
            b"\x01\x04\x01\x01f\x01v",
            b"\x01\x05\x01\x01m\x00\x00\x00\x00\x00\x00\xf0\x3f",
            // A set of integers, and packed lists.
            b"\x01\x0b\x0c\x02\x00\x00\x00\x02\x00\x00\x00\x01\x00\x02\x00",
            b"\x01\x10\x0d\x0d\x00\x00\x00\x02\x00\x81f\x02\x81v\x02\xff",
            b"\x01\x11\x0c\x0c\x00\x00\x00\x02\x00\x81m\x02\x01\x01\xff",
            b"\x01\x12\x01\x02\x0a\x0a\x00\x00\x00\x01\x00\x81a\x02\xff",
            // An empty stream with its numbers.
            b"\x01\x15\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00",
        ];
        payloads.iter().map(|payload| payload.to_vec()).collect()
    },
    runs: 300,
};

pub(super) const SERVER_CONFIG: Target = Target {
    name: "server_config",
    run: fuzzing::config,
    corpus: || {
        texts(&[
            "bind = [\"0.0.0.0\", \"::1\"]\nport = 7000\ntls-port = 7001\n",
            "pool = \"64mb\"\nproto-max-bulk-len = 1\nmaxclients = 4294967295\n",
            "notify-keyspace-events = \"KEA\"\nloglevel = \"debug\"\nlog-format = \"json\"\n",
            "slowlog-log-slower-than = -1\narchive-interval = 0\nnvme-idle-us = 0\n",
            "http = \"127.0.0.1:1\"\ntls-auth-clients = \"optional\"\nio-threads = 0\n",
        ])
    },
    runs: 1_000,
};

pub(super) const SERVER_ACL: Target = Target {
    name: "server_acl",
    run: fuzzing::acl,
    corpus: || {
        texts(&[
            "user default on nopass ~* &* +@all\n",
            "user till on >secret ~stock:* %R~a %W~b %RW~c +@read -@dangerous +config|get\n",
            "# users\nuser u off resetkeys allkeys resetchannels &c* -@all +get (+set ~k &c) (allcommands ~*)\n",
            "user u on #5e884898da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8 clearselectors reset\n",
        ])
    },
    runs: 1_000,
};

fn texts(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}
