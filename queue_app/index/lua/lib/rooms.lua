--! include limits
-- Room: the number of tasks that a gate lets start now, by cap, rate, delay, throttle and pause. A used slot is an existing
-- lease, so a cap is compared with the size of a set; there is no counter that could drift.
local exchanged = {}  -- gate -> leases that end with the claim of this call: their slots count as free
local buckets = {}  -- gate -> {tat, interval, next} of its rate
local function forget_policies()
  queue_policies, limited, family_policies, gate_policies, lane_gates, overall = {}, {}, {}, {}, {}, nil
  buckets = {}
end

-- Returns the used tokens of a rate, the duration of one token (the interval in force at the last start), and the earliest
-- start by the delay (us). `tat` is the instant at which the bucket is full again (GCRA). A bucket without a record counts
-- as empty at `since`, when the index got its limit: after a loss of the index no more tasks may start than the limit allows.
local function read_bucket(g, policy, now)
  local found = buckets[g]
  if not found then
    found = redis.call('HMGET', bucket_key(policy.since, g), 'tat', 'interval', 'next')
    buckets[g] = found
  end
  local each = tonumber(found[2] or nil) or policy.interval or 1
  local tat = tonumber(found[1] or nil) or tonumber(policy.since) + (policy.burst or 0) * each
  return math.max(0, tat - now) / each, each, tonumber(found[3] or nil) or tonumber(policy.since) + (policy.delay or 0)
end

-- Returns the room by throttle, rate and delay; when there is none, also the earliest start (us).
local function rate_room(g, policy)
  local now = now_us()
  local throttled_until = policy.throttled and policy.throttled - rows_ahead()
  if throttled_until and throttled_until > now then return 0, throttled_until end
  if not policy.interval and not policy.delay then return math.huge end
  local used, each, next_at = read_bucket(g, policy, now)
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

-- Records `n` starts in the rate and the delay of a gate.
local function record_starts(g, policy, n)
  if not policy.interval and not policy.delay then return end
  local now, key = now_us(), bucket_key(policy.since, g)
  local used = read_bucket(g, policy, now)
  buckets[g] = nil
  local lasts = tonumber(policy.since) + (policy.burst or 0) * (policy.interval or 0) + (policy.delay or 0)
  if policy.interval then
    local tat = now + (used + n) * policy.interval
    redis.call('HSET', key, 'tat', exact(tat), 'interval', exact(policy.interval))
    lasts = math.max(lasts, tat)
  end
  if policy.delay then
    redis.call('HSET', key, 'next', whole(now + policy.delay))
    lasts = math.max(lasts, now + policy.delay)
  end
  -- A full bucket and a missing one mean the same, so the record may expire then.
  redis.call('PEXPIREAT', key, whole(math.ceil(lasts / 1000) + 1000))
end

local function cap_room(cap, used)
  if not cap then return math.huge end
  return math.max(0, tonumber(cap) - used)
end

local function room_of(g, policy, used)
  if policy.paused or cap_room(policy.cap, used) <= 0 then return 0 end
  local n, at = rate_room(g, policy)
  return math.min(n, cap_room(policy.cap, used)), at
end

-- These return the room and, if a gate without room opens by time alone, the instant (us) at which it opens.
local function gate_room(g)
  local policy = gate_policy(g)
  return room_of(g, policy, policy.cap and redis.call('SCARD', held_key(g)) - (exchanged[g] or 0) or 0)
end
local function queue_room(q)
  local policy = queue_policy(q)
  return room_of('q:' .. q, policy, policy.cap and redis.call('ZCARD', queue_leases_key(q)) - (exchanged['q:' .. q] or 0) or 0)
end

local function global_room()
  local policy = global_policy()
  if policy[2] == '1' then return 0 end
  if not policy[1] then return math.huge end
  return cap_room(policy[1], redis.call('HLEN', LEASES) - (exchanged.a or 0))
end
