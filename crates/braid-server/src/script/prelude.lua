-- Builds what scripts see. Gets the host's functions; returns a function that makes the environment
-- of one script, one that makes the environment of a library, and the original `pcall`.
--
-- A script cannot reach the tables that all scripts share: every environment has tables of its own,
-- which look names up there.

local host = ...

local error, pcall, xpcall, type, setmetatable = error, pcall, xpcall, type, setmetatable
local tostring, sub, find, rawget, collectgarbage = tostring, string.sub, string.find, rawget, collectgarbage
local resume, select, tonumber, lower, concat = coroutine.resume, select, tonumber, string.lower, table.concat
local pairs = pairs

-- The methods of strings must not be changed for other scripts.
getmetatable("").__metatable = false

local globals = {}
for _, name in ipairs({
    "_VERSION", "assert", "error", "getmetatable", "ipairs", "next", "pairs", "rawequal", "rawget",
    "rawset", "select", "setmetatable", "tonumber", "tostring", "type", "unpack",
}) do
    globals[name] = _G[name]
end

-- A script that has to stop must not catch that. An error of a command is caught as its text.
local function checked(is_result, ...)
    if host.is_stopping() then
        error("the script is stopped", 0)
    end
    if not is_result then
        local raised = ...
        local text = type(raised) == "table" and rawget(raised, "err")
        if type(text) == "string" then
            return false, text
        end
        if type(raised) == "userdata" then
            -- An error of a function of the host, which scripts expect as a text.
            return false, host.error_text(raised) or raised
        end
    end
    return is_result, ...
end

function globals.pcall(...)
    return checked(pcall(...))
end

function globals.xpcall(...)
    return checked(xpcall(...))
end

function globals.collectgarbage(option)
    if option == nil or option == "collect" or option == "count" then
        return collectgarbage(option)
    end
    error("collectgarbage: only \"collect\" and \"count\" are available", 2)
end

local slot = host.slot

local function call(...)
    local run = slot.call
    if not run then
        error("redis.call and redis.pcall can only be called while a script runs", 0)
    end
    return run(...)
end

-- Raises an error without a position in front, as Redis raises those of its own functions.
local function fail(text)
    error({ err = "ERR " .. text }, 0)
end

-- Texts are strings, and numbers, which Lua takes for strings.
local function is_text(value)
    return type(value) == "string" or type(value) == "number"
end

local constants = {
    LOG_DEBUG = 0,
    LOG_VERBOSE = 1,
    LOG_NOTICE = 2,
    LOG_WARNING = 3,
    REDIS_VERSION = host.version,
    REDIS_VERSION_NUM = host.version_number,
}

local redis = {
    pcall = call,
    REPL_NONE = 0,
    REPL_SLAVE = 1,
    REPL_REPLICA = 1,
    REPL_AOF = 2,
    REPL_ALL = 3,
}
for name, value in pairs(constants) do
    redis[name] = value
end

function redis.call(...)
    local reply = call(...)
    if type(reply) == "table" and reply.err then
        error(reply, 0)
    end
    return reply
end

function redis.log(...)
    if select("#", ...) < 2 then
        fail("redis.log() requires two arguments or more.")
    end
    local level = tonumber((...))
    if not level then
        fail("First argument must be a number (log level).")
    end
    if not (level > -1 and level < 4) then
        fail("Invalid debug level.")
    end
    local words = {}
    for at = 2, select("#", ...) do
        local word = select(at, ...)
        if is_text(word) then
            words[#words + 1] = word
        end
    end
    host.log(level, concat(words, " "))
end

function redis.sha1hex(...)
    if select("#", ...) ~= 1 then
        fail("wrong number of arguments")
    end
    local text = ...
    return host.sha1hex(is_text(text) and text or "")
end

function redis.error_reply(...)
    local text = ...
    if select("#", ...) ~= 1 or type(text) ~= "string" then
        return { err = "ERR wrong number or type of arguments" }
    end
    if sub(text, 1, 1) == "-" then
        text = sub(text, 2)
    end
    if not find(text, " ", 1, true) then
        text = "ERR " .. text
    end
    return { err = text }
end

function redis.status_reply(...)
    local text = ...
    if select("#", ...) ~= 1 or type(text) ~= "string" then
        return { err = "ERR wrong number or type of arguments" }
    end
    return { ok = text }
end

function redis.setresp(...)
    if select("#", ...) ~= 1 then
        fail("redis.setresp() requires one argument.")
    end
    local version = tonumber((...)) or 0
    if version < 2 or version >= 4 then
        fail("RESP version must be 2 or 3.")
    end
    slot.resp3 = version >= 3
end

function redis.acl_check_cmd(...)
    local check = slot.check
    if not check then
        error("redis.acl_check_cmd can only be called while a script runs", 0)
    end
    local is_allowed, wrong = check(...)
    if wrong then
        error({ err = wrong }, 0)
    end
    return is_allowed
end

-- Scripts are transactions, which are not replicated command by command.
function redis.replicate_commands()
    return true
end

function redis.set_repl(...)
    if select("#", ...) ~= 1 then
        fail("redis.set_repl() requires two arguments.")
    end
    local what = tonumber((...)) or 0
    if not (what > -1 and what < 4) then
        fail("Invalid replication flags. Use REPL_AOF, REPL_REPLICA, REPL_ALL or REPL_NONE.")
    end
end

-- As in Redis without a debugger.
function redis.breakpoint()
    return false
end

function redis.debug() end

-- Returns the arguments of redis.register_function that a table names.
local function named(arguments)
    local found = {}
    for key, value in pairs(arguments) do
        local name = type(key) == "string" and lower(key)
        if name == "function_name" or name == "description" then
            if not is_text(value) then
                fail(name .. " argument given to redis.register_function must be a string")
            end
        elseif name == "callback" then
            if type(value) ~= "function" then
                fail("callback argument given to redis.register_function must be a function")
            end
        elseif name == "flags" then
            if type(value) ~= "table" then
                fail("flags argument to redis.register_function must be a table representing function flags")
            end
        else
            fail("unknown argument given to redis.register_function")
        end
        found[name] = value
    end
    if found.function_name == nil then
        fail("redis.register_function must get a function name argument")
    end
    if found.callback == nil then
        fail("redis.register_function must get a callback argument")
    end
    return found.function_name, found.callback, found.flags, found.description
end

-- Redis' interface while a library is loaded.
local loading = { log = redis.log }
for name, value in pairs(constants) do
    loading[name] = value
end

function loading.register_function(...)
    local register = slot.register
    if not register then
        fail("redis.register_function can only be called on FUNCTION LOAD command")
    end
    local count, first, second = select("#", ...), ...
    local wrong
    if count == 1 then
        if type(first) ~= "table" then
            fail("calling redis.register_function with a single argument is only applicable to Lua table (representing named arguments).")
        end
        wrong = register(named(first))
    elseif count == 2 then
        if not is_text(first) then
            fail("first argument to redis.register_function must be a string")
        end
        if type(second) ~= "function" then
            fail("second argument to redis.register_function must be a function")
        end
        wrong = register(first, second)
    else
        fail("wrong number of arguments to redis.register_function")
    end
    if wrong then
        fail(wrong)
    end
end

local libraries = {
    redis = redis,
    server = redis,
    string = {},
    table = table,
    math = math,
    os = { clock = os.clock },
    coroutine = {
        create = coroutine.create,
        running = coroutine.running,
        status = coroutine.status,
        wrap = coroutine.wrap,
        yield = coroutine.yield,
        resume = function(...)
            return checked(resume(...))
        end,
    },
    bit = host.bit,
    cjson = host.cjson,
    cmsgpack = host.cmsgpack,
    struct = host.struct,
}
for name, value in pairs(string) do
    -- Compiled code is not checked before it runs.
    if name ~= "dump" then
        libraries.string[name] = value
    end
end
string.dump = nil

local function readonly()
    error("Attempt to modify a readonly table", 2)
end

local metatables = {}
for name, library in pairs(libraries) do
    metatables[name] = { __index = library, __newindex = readonly, __metatable = false }
end

local function absent(_, name)
    error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2)
end

setmetatable(globals, { __index = absent })
local with_globals = { __index = globals }

-- Makes an environment that has these names, and that no assignment changes.
local function environment(names)
    return setmetatable({}, { __index = names, __newindex = readonly, __metatable = false })
end

-- Gives an environment tables of its own, and everything that all environments have.
local function fill(env, names)
    for name, metatable in pairs(metatables) do
        names[name] = setmetatable({}, metatable)
    end
    names._G = env
    setmetatable(names, with_globals)
end

local function new_environment(keys, arguments)
    local names = { KEYS = keys, ARGV = arguments }
    local env = environment(names)
    fill(env, names)
    return env
end

local only_these = { __index = absent }
setmetatable(loading, only_these)
local loading_metatable = { __index = loading, __newindex = readonly, __metatable = false }

-- As in Redis, the code of a library can do little more than register functions, which see everything
-- but KEYS and ARGV when they run.
local function new_library()
    local redis = setmetatable({}, loading_metatable)
    local names = setmetatable({ redis = redis, server = redis }, only_these)
    local env = environment(names)
    local function end_loading()
        fill(env, names)
    end
    return env, end_loading
end

return new_environment, new_library, pcall
