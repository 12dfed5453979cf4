-- Counts what waits and runs in all queues, a bounded number of lanes at a time, for metrics.
--
-- KEYS[1]  prefix (hash tag) of all keys
-- ARGV[1]  queue to go on with ('' at first: then generation, leader and counts are told too)
-- ARGV[2]  cursor in that queue ('0' at first)
-- Returns  {queue to go on with or '', cursor, about, queue, leased, count, oldest score or '', ...}
--          with a pair for each band from critical on, and the next queue; a queue may come in parts.
--          `about` is {generation, state, ms until the leadership lapses (< 0: nobody leads), name, count, ...},
--          or empty
--
-- A lane mostly holds one band, the same as the lane before it, and nothing older than what was
-- seen. That takes three reads which neither make a text nor walk: a count of what lies beyond
-- an end of a sorted set is 0 after a look at that end, whatever lies within.
--! include keys
local about = {}
if ARGV[1] == '' then
  local generation = redis.call('HMGET', GENERATION, 'number', 'run_id', 'state')
  local run_id = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
  local state = generation[3] or 'missing'
  if generation[2] ~= run_id then state = 'missing' end
  about = { tonumber(generation[1] or 0), state, redis.call('PTTL', P .. ':lock:scheduler') }
  for _, part in ipairs(redis.call('HGETALL', COUNTERS)) do about[#about + 1] = part end
end

local call, above = redis.call, {}
for band = 0, 4 do above[band] = string.format('%.0f', (band + 1) * 1e13) end

-- Counts a lane band by band; returns the band of its first task.
local function count_bands(key, rest, counts, oldest)
  local score = call('ZRANGE', key, '0', '0', 'WITHSCORES')[2]
  local first_band
  while rest > 0 do
    local band = math.floor(tonumber(score) / 1e13)
    local further = rest > 1 and band < 4 and call('ZCOUNT', key, above[band], '+inf') or 0
    counts[band + 1] = counts[band + 1] + rest - further
    local known = oldest[band + 1]
    if not known or tonumber(score) < tonumber(known) then oldest[band + 1] = score end
    first_band, rest = first_band or band, further
    if rest > 0 then
      score = call('ZRANGEBYSCORE', key, above[band], '+inf', 'WITHSCORES', 'LIMIT', '0', '1')[2]
    end
  end
  return first_band
end

local function count_lanes(lanes, counts, oldest)
  local band
  for _, lane in ipairs(lanes) do
    local key = lane_key(lane)
    local n = call('ZCARD', key)
    if band and call('ZCOUNT', key, above[band], '+inf') == 0
        and call('ZCOUNT', key, '-inf', '(' .. oldest[band + 1]) == 0 then
      counts[band + 1] = counts[band + 1] + n
    else
      band = count_bands(key, n, counts, oldest) or band
    end
  end
end

local reply = { '', '0', about }
local queues, seen, cursor = redis.call('SMEMBERS', QUEUES), 0, ARGV[2]
table.sort(queues)
for _, q in ipairs(queues) do
  if q >= ARGV[1] then
    if seen >= 5000 then
      reply[1], reply[2] = q, '0'
      return reply
    end
    local page = redis.call('SSCAN', lanes_key(q), q == ARGV[1] and cursor or '0', 'COUNT', 5000)
    local counts, oldest = { 0, 0, 0, 0, 0 }, {}
    count_lanes(page[2], counts, oldest)
    reply[#reply + 1] = q
    reply[#reply + 1] = redis.call('ZCARD', queue_leases_key(q))
    for band = 1, 5 do
      reply[#reply + 1] = counts[band]
      reply[#reply + 1] = oldest[band] or ''
    end
    seen = seen + #page[2]
    if page[1] ~= '0' then
      reply[1], reply[2] = q, page[1]
      return reply
    end
  end
end
return reply
