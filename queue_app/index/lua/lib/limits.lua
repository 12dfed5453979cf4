-- How many tasks may still start. A start passes gates: everything ('a'), its queue
-- ('q:name'), its task type ('t:name'), its concurrency key ('k:name') and, where the queue
-- limits its users, its user there ('u:queue\30name'). A slot is a lease that exists, so a
-- cap compares a cardinality; there is no counter that could drift.
local split = {}  -- lane -> its parts, for the length of one call
local function split_lane(lane)
  local parts = split[lane]
  if not parts then
    parts = { string.match(lane, '^([^\31]*)\31?([^\31]*)\31?([^\31]*)\31?([^\31]*)\31?([^\31]*)\31?([^\31]*)$') }
    split[lane] = parts
  end
  return parts[1], parts[2], parts[3], parts[4], parts[5], tonumber(parts[6]) or 1
end

local POLICY = { 'paused', 'max_concurrent', 'burst', 'interval', 'delay', 'throttled', 'since', 'per_user',
  'fair', 'by_user' }
local function read_policy(key)
  local found = redis.call('HMGET', key, unpack(POLICY))
  return { paused = found[1] == '1', cap = found[2] or nil, burst = tonumber(found[3] or nil),
    interval = tonumber(found[4] or nil), delay = tonumber(found[5] or nil), throttled = tonumber(found[6] or nil),
    since = found[7] or '0', per_user = found[8] or nil, fair = found[9] or nil, by_user = found[10] == '1' }
end

local NONE = { paused = false, since = '0', by_user = false }
local policies = {}  -- for the length of one call: queue -> its limits
local function queue_policy(q)
  policies[q] = policies[q] or (redis.call('SISMEMBER', LIMITED, q) == 1 and read_policy(queue_key(q))) or NONE
  return policies[q]
end

local overall
local function global_policy()
  overall = overall or redis.call('HMGET', SETTINGS, 'max_concurrent', 'paused', 'gated')
  return overall
end

local limited  -- gate -> true, for those of types and keys that have limits; read when first needed
local function limits()
  if not limited then
    limited = {}
    if global_policy()[3] then limited = setmetatable({}, { __index = function(known, g)
      local has = redis.call('SISMEMBER', LIMITS, g) == 1
      rawset(known, g, has)
      return has
    end }) end
  end
  return limited
end

local limit_policies = {}  -- gate -> its own limits
local function limit_policy(g)
  limit_policies[g] = limit_policies[g] or read_policy(limit_key(g))
  return limit_policies[g]
end

local function family_of(g) return string.match(g, '^(k:[^:]+):') end

-- A key's own limits, else those of its family; but both can pause it, and slow it down.
local gate_policies = {}
local function gate_policy(g)
  if gate_policies[g] then return gate_policies[g] end
  local policy
  if string.sub(g, 1, 1) == 'u' then
    policy = { cap = queue_policy(string.match(g, '^u:([^\30]*)\30')).per_user }
  else
    policy = limits()[g] and read_policy(limit_key(g)) or {}
    local family = family_of(g)
    if family and limits()[family] then
      local general = limit_policy(family)
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

-- The gates of a lane that have limits, besides everything and its queue.
local lane_gates = {}
local function gates_of(lane)
  local gates = lane_gates[lane]
  if not gates then
    gates = {}
    local has = limits()
    if getmetatable(has) then
      local q, task_type, _, user, key = split_lane(lane)
      if has['t:' .. task_type] then gates[1] = 't:' .. task_type end
      if key ~= '' then
        local family = family_of('k:' .. key)
        if has['k:' .. key] or (family and has[family]) then gates[#gates + 1] = 'k:' .. key end
      end
      if user ~= '' and has['u:' .. q] then gates[#gates + 1] = 'u:' .. q .. '\30' .. user end
    end
    lane_gates[lane] = gates
  end
  return gates
end

local buckets = {}  -- gate -> what of its rate is used
local function forget_policies()
  policies, limited, limit_policies, gate_policies, lane_gates, overall = {}, nil, {}, {}, {}, nil
  buckets = {}
end

-- What of a rate is used now, in tokens, and how long one lasts: until the next start by the
-- interval that was in force at the last. `tat` is when the bucket will be full again (GCRA).
-- One that was never used is empty at the instant from which its limit has been known, so
-- that no more start than it says, also when the index was lost.
local function used_of(g, policy, now)
  local found = buckets[g]
  if not found then
    found = redis.call('HMGET', bucket_key(policy.since, g), 'tat', 'interval', 'next')
    buckets[g] = found
  end
  local each = tonumber(found[2] or nil) or policy.interval or 1
  local tat = tonumber(found[1] or nil) or tonumber(policy.since) + (policy.burst or 0) * each
  return math.max(0, tat - now) / each, each, tonumber(found[3] or nil) or tonumber(policy.since) + (policy.delay or 0)
end

-- How many may start now by rate and delay; when none, also the instant (us) that lets one start.
local function pace(g, policy)
  local now = now_us()
  if policy.throttled and policy.throttled > now then return 0, policy.throttled end
  if not policy.interval and not policy.delay then return math.huge end
  local used, each, next_at = used_of(g, policy, now)
  local n, at = math.huge, nil
  if policy.interval then
    n = math.max(0, math.floor(policy.burst - used))
    if n == 0 then at = math.ceil(now + (used - policy.burst + 1) * each) + 1 end
  end
  if policy.delay then
    if next_at > now then
      n, at = 0, math.max(at or 0, next_at)
    else
      n = math.min(n, 1)
    end
  end
  return n, at
end

local function spend(g, policy, n)
  if not policy.interval and not policy.delay then return end
  local now, key = now_us(), bucket_key(policy.since, g)
  local used = used_of(g, policy, now)
  buckets[g] = nil
  local lasts = tonumber(policy.since) + (policy.burst or 0) * (policy.interval or 0) + (policy.delay or 0)
  if policy.interval then
    local tat = now + (used + n) * policy.interval
    redis.call('HSET', key, 'tat', exact(tat), 'interval', exact(policy.interval))
    lasts = math.max(lasts, tat)
  end
  if policy.delay then
    redis.call('HSET', key, 'next', string.format('%.0f', now + policy.delay))
    lasts = math.max(lasts, now + policy.delay)
  end
  -- Once it is full again it says what one says that was never used.
  redis.call('PEXPIREAT', key, string.format('%.0f', math.ceil(lasts / 1000) + 1000))
end

local function room_under(cap, used)
  if not cap then return math.huge end
  return math.max(0, tonumber(cap) - used)
end

local function room_at(g, policy, used)
  if policy.paused or room_under(policy.cap, used) <= 0 then return 0 end
  local n, at = pace(g, policy)
  return math.min(n, room_under(policy.cap, used)), at
end

-- These return the room, and when only time is wanting, the instant (us) that brings some.
local function gate_room(g)
  local policy = gate_policy(g)
  return room_at(g, policy, policy.cap and redis.call('SCARD', held_key(g)) or 0)
end
local function queue_room(q)
  local policy = queue_policy(q)
  return room_at('q:' .. q, policy, policy.cap and redis.call('ZCARD', queue_leases_key(q)) or 0)
end
local function global_room()
  local policy = global_policy()
  if policy[2] == '1' then return 0 end
  if not policy[1] then return math.huge end
  return room_under(policy[1], redis.call('HLEN', LEASES))
end

-- The lane that a task stands in. Callers name its user always; whether that makes a lane of
-- its own is the queue's matter, and known here only.
local function lane_of(address)
  local q, task_type, capabilities, user, key, weight = split_lane(address)
  if user == '' or queue_policy(q).by_user then return address end
  local lane = q .. '\31' .. task_type .. '\31' .. capabilities
  if key == '' and weight == 1 then return lane end
  return lane .. '\31\31' .. key .. '\31' .. string.format('%d', weight)
end

-- Who takes turns in a fair queue, for a task of this lane.
local function turner(fair, lane)
  local _, _, _, user, key = split_lane(lane)
  return fair == 'key' and key or user
end

-- Writes leases: id, lane, id, lane, ... Redis keeps a small hash as a list, and looks up by
-- reading it. One value longer than a list may have makes a table of it, which it then stays.
local function hold_leases(held)
  local is_new = redis.call('EXISTS', LEASES) == 0
  if is_new then redis.call('HSET', LEASES, '', string.rep(' ', 100)) end
  redis.call('HSET', LEASES, unpack(held))
  if is_new then redis.call('HDEL', LEASES, '') end
end
