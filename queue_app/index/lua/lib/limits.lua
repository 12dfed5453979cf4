--! include keys
-- Limits, as set_limits.lua copied them from their rows. A task passes these gates at its start: everything ('a'), its
-- queue ('q:name'), its task type ('t:name'), its concurrency key ('k:name') and, where the queue limits its users, its
-- user in that queue ('u:queue\30name'). The pause and the throttle of a family of keys are a gate of their own too ('f:name'),
-- behind which tasks of all its keys wait together. All values are cached until the call ends.
local lane_parts = {}
local function split_lane(lane)
  local parts = lane_parts[lane]
  if not parts then
    parts = { string.match(lane, '^([^\31]*)\31?([^\31]*)\31?([^\31]*)\31?([^\31]*)\31?([^\31]*)\31?([^\31]*)$') }
    lane_parts[lane] = parts
  end
  return parts[1], parts[2], parts[3], parts[4], parts[5], tonumber(parts[6]) or 1
end

local FIELDS = { 'paused', 'max_concurrent', 'burst', 'interval', 'delay', 'throttled', 'since', 'per_user',
  'fair', 'by_user', 'arrival' }
local function read_policy(key)
  local found = redis.call('HMGET', key, unpack(FIELDS))
  return { paused = found[1] == '1', cap = found[2] or nil, burst = tonumber(found[3] or nil),
    interval = tonumber(found[4] or nil), delay = tonumber(found[5] or nil), throttled = tonumber(found[6] or nil),
    since = found[7] or '0', per_user = found[8] or nil, fair = found[9] or nil, by_user = found[10] == '1',
    arrival = found[11] == '1' }
end

local NONE = { paused = false, since = '0', by_user = false }
local queue_policies = {}
local function queue_policy(q)
  queue_policies[q] = queue_policies[q]
    or (redis.call('SISMEMBER', LIMITED, q) == 1 and read_policy(queue_key(q))) or NONE
  return queue_policies[q]
end

-- The limits of everything: {cap, paused, gated}.
local overall
local function global_policy()
  overall = overall or redis.call('HMGET', SETTINGS, 'max_concurrent', 'paused', 'gated')
  return overall
end

-- Whether a type, a key or the users of a queue have, or had, limits.
local function has_gate_limits() return global_policy()[3] end

local limited = {}  -- gate of a type, a key, a family of keys or the users of a queue -> whether it has limits
local function has_limits(g)
  if limited[g] == nil then limited[g] = redis.call('SISMEMBER', LIMITS, g) == 1 end
  return limited[g]
end

local family_policies = {}
local function family_policy(family)
  family_policies[family] = family_policies[family] or read_policy(limit_key(family))
  return family_policies[family]
end

local function family_of(g) return string.match(g, '^(k:[^:]+):') end

-- The limits of a type, a key or a user. A key has its own limits, else its family's; both can pause it and
-- throttle it.
local gate_policies = {}
local function gate_policy(g)
  if gate_policies[g] then return gate_policies[g] end
  local policy
  if string.sub(g, 1, 1) == 'u' then
    policy = { cap = queue_policy(string.match(g, '^u:([^\30]*)\30')).per_user }
  elseif string.sub(g, 1, 1) == 'f' then
    local family = 'k:' .. string.sub(g, 3)
    local general = has_limits(family) and family_policy(family) or NONE
    policy = { paused = general.paused, throttled = general.throttled }
  elseif not has_gate_limits() then
    policy = {}
  else
    policy = has_limits(g) and read_policy(limit_key(g)) or {}
    local family = family_of(g)
    if family and has_limits(family) then
      local general = family_policy(family)
      if not (policy.cap or policy.interval or policy.delay) then
        policy.cap, policy.burst, policy.interval, policy.delay, policy.since =
          general.cap, general.burst, general.interval, general.delay, general.since
      end
      policy.paused = policy.paused or general.paused
      policy.throttled = math.max(policy.throttled or 0, general.throttled or 0)
    end
  end
  gate_policies[g] = policy
  return policy
end

-- The gates of an address, or of a lane by what its name gives, that have limits, besides everything and its queue.
local lane_gates = {}
local function gates_of(lane)
  local gates = lane_gates[lane]
  if not gates then
    gates = {}
    if has_gate_limits() then
      local q, task_type, _, user, key = split_lane(lane)
      if has_limits('t:' .. task_type) then gates[1] = 't:' .. task_type end
      if string.sub(key, 1, 1) == '\30' then  -- a lane that a family has opened
        gates[#gates + 1] = 'f:' .. string.sub(key, 2)
      elseif key ~= '' then
        local family = family_of('k:' .. key)
        if has_limits('k:' .. key) or (family and has_limits(family)) then gates[#gates + 1] = 'k:' .. key end
      end
      if user ~= '' and has_limits('u:' .. q) then gates[#gates + 1] = 'u:' .. q .. '\30' .. user end
    end
    lane_gates[lane] = gates
  end
  return gates
end
