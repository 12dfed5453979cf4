-- Counts waiting tasks and leases of all queues, or of one, about 1000 lanes per call: 3 ms.
--
-- ARGV[1]  queue to continue with; '' at first for all queues
-- ARGV[2]  cursor in that queue ('0' at first)    ARGV[3]  '1': that queue only
-- Returns  {queue to continue with or '', cursor, header, queue, leases, count, oldest score or '', ...}
--          with one pair for each band from critical on, then the next queue; a queue may come in parts.
--          header: {generation, state, ms until the leadership expires (< 0: no leader), name, count, ...}
--          in the first reply for all queues, else {}
--
-- Most lanes hold one band, the same as the lane before, and no task older than the oldest found so far. Three cheap reads
-- confirm this: ZCOUNT beyond an end of a sorted set only reads that end and returns 0, at any size of the set.
--! include keys
local call, header = redis.call, {}
if ARGV[1] == '' then
  local generation = call('HMGET', GENERATION, 'number', 'run_id', 'state')
  local state = generation[2] == server_run() and true_state(generation[3]) or 'missing'
  header = { tonumber(generation[1] or 0), state, call('PTTL', P .. ':lock:scheduler') }
  for _, part in ipairs(call('HGETALL', COUNTERS)) do header[#header + 1] = part end
end

local above = {}
for band = 0, 4 do above[band] = whole((band + 1) * 1e13) end

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

local reply, seen = { '', '0', header }, 0
local queues = ARGV[3] == '1' and { ARGV[1] } or call('SMEMBERS', QUEUES)
table.sort(queues)
for _, q in ipairs(queues) do
  if q >= ARGV[1] then
    if seen >= 1000 then
      reply[1] = q
      return reply
    end
    local page = call('SSCAN', lanes_key(q), q == ARGV[1] and ARGV[2] or '0', 'COUNT', 1000)
    local counts, oldest = { 0, 0, 0, 0, 0 }, {}
    count_lanes(page[2], counts, oldest)
    reply[#reply + 1] = q
    reply[#reply + 1] = call('ZCARD', queue_leases_key(q))
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
