--! include lanes
-- Turns in a fair queue. The entries of its heads are not lanes but owners: the users or keys that take turns, at the
-- score band * 10^13 + turn. Each owner has a list of its lanes. A turn begins where the last turn of its owner ended, or
-- at the turn that was taken last in the queue (`NOW`), if that is later.
local function list_key(p, q, g)
  return g == '' and queue_heads_key(p, q) or group_key(p, q, g)
end

local function split_entry(entry) return string.match(entry, '^([^\30]*)\30(.*)$') end

local NOW = '\30'  -- the member that holds the turn taken last
local turns = {}  -- key -> owner -> turn
local function turns_in(key)
  turns[key] = turns[key] or { [NOW] = tonumber(redis.call('ZSCORE', key, NOW) or nil) or 0 }
  return turns[key]
end
local function turn_of(q, band, who)
  local key = turns_key(q, band)
  local known = turns_in(key)
  if not known[who] then known[who] = tonumber(redis.call('ZSCORE', key, who) or nil) or 0 end
  return math.max(known[NOW], known[who])
end

-- Records the next turns. Removes owners whose turn is past: a missing owner starts at `NOW`.
local function set_turns(q, band, taken)
  local key, args = turns_key(q, band), {}
  local known = turns_in(key)
  for who, at in pairs(taken) do
    known[who] = at
    args[#args + 1] = exact(at)
    args[#args + 1] = who
  end
  redis.call('ZADD', key, unpack(args))
  redis.call('ZREMRANGEBYSCORE', key, '-inf', '(' .. exact(taken[NOW]))
end

-- Puts an owner at its turn in its group, or removes it when it has no lane there.
local function refresh_turn(p, q, g, who)
  local lane, score = first_of(turn_key(p, q, g, who))
  if lane then
    local band = math.floor(tonumber(score) / 1e13)
    redis.call('ZADD', list_key(p, q, g), exact(band * 1e13 + turn_of(q, band, who)), who .. '\30')
  else
    redis.call('ZREM', list_key(p, q, g), who .. '\30')
  end
end
