-- Builds what scripts see. Gets the host's functions; returns a function that makes the environment
-- of one script, and the original `pcall`.
--
-- A script cannot reach the tables that all scripts share: every environment has tables of its own,
-- which look names up there.

local host = ...

local error, pcall, xpcall, type, setmetatable = error, pcall, xpcall, type, setmetatable
local tostring, sub, find, rawget, collectgarbage = tostring, string.sub, string.find, rawget, collectgarbage
local resume = coroutine.resume

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

local redis = {
    pcall = call,
    sha1hex = host.sha1hex,
    log = host.log,
    LOG_DEBUG = 0,
    LOG_VERBOSE = 1,
    LOG_NOTICE = 2,
    LOG_WARNING = 3,
    REPL_NONE = 0,
    REPL_SLAVE = 1,
    REPL_REPLICA = 1,
    REPL_AOF = 2,
    REPL_ALL = 3,
    REDIS_VERSION = host.version,
    REDIS_VERSION_NUM = host.version_number,
}

function redis.call(...)
    local reply = call(...)
    if type(reply) == "table" and reply.err then
        error(reply, 0)
    end
    return reply
end

function redis.error_reply(text)
    if type(text) ~= "string" then
        error("wrong number or type of arguments", 2)
    end
    if sub(text, 1, 1) == "-" then
        text = sub(text, 2)
    end
    if not find(text, " ", 1, true) then
        text = "ERR " .. text
    end
    return { err = text }
end

function redis.status_reply(text)
    if type(text) ~= "string" then
        error("wrong number or type of arguments", 2)
    end
    return { ok = text }
end

function redis.setresp(version)
    if version ~= 2 and version ~= 3 then
        error("RESP version must be 2 or 3.", 2)
    end
    slot.resp3 = version == 3
end

function redis.acl_check_cmd(...)
    local check = slot.check
    if not check then
        error("redis.acl_check_cmd can only be called while a script runs", 0)
    end
    return check(...)
end

-- Scripts are transactions, which are not replicated command by command.
function redis.replicate_commands()
    return true
end

function redis.set_repl() end

function redis.register_function(...)
    local register = slot.register
    if not register then
        error("redis.register_function can only be called on FUNCTION LOAD command", 0)
    end
    local first = ...
    if type(first) == "table" then
        local known = { function_name = true, callback = true, flags = true, description = true }
        for key in pairs(first) do
            if not known[key] then
                error("unknown argument given to redis.register_function", 0)
            end
        end
        return register(first.function_name, first.callback, first.flags, first.description)
    end
    return register(...)
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

local environment = {
    __index = function(_, name)
        local value = globals[name]
        if value == nil then
            error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2)
        end
        return value
    end,
    __newindex = function(_, name)
        error("Script attempted to create global variable '" .. tostring(name) .. "'", 2)
    end,
    __metatable = false,
}

local function new_environment(keys, arguments)
    local env = {}
    for name, metatable in pairs(metatables) do
        env[name] = setmetatable({}, metatable)
    end
    env._G = env
    env.KEYS = keys
    env.ARGV = arguments
    return setmetatable(env, environment)
end

return new_environment, pcall
