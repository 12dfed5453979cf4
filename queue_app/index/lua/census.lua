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
-- A lane mostly holds one band, so its ends tell all: three reads a lane instead of ten.
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

local function count_lane(lane, counts, oldest)
  local first = redis.call('ZRANGE', lane_key(lane), 0, 0, 'WITHSCORES')[2]
  if not first then return end
  local band, total = math.floor(first / 1e13), redis.call('ZCARD', lane_key(lane))
  local last = total > 1 and redis.call('ZRANGE', lane_key(lane), -1, -1, 'WITHSCORES')[2] or first
  while band < 4 and tonumber(last) >= (band + 1) * 1e13 do  -- more than one band
    local n = redis.call('ZCOUNT', lane_key(lane), string.format('%.0f', band * 1e13),
      string.format('(%.0f', (band + 1) * 1e13))
    if n > 0 then
      counts[band + 1] = counts[band + 1] + n
      total = total - n
      if oldest[band + 1] == '' or tonumber(first) < tonumber(oldest[band + 1]) then oldest[band + 1] = first end
    end
    band = band + 1
    first = redis.call('ZRANGEBYSCORE', lane_key(lane), string.format('%.0f', band * 1e13), '+inf', 'WITHSCORES',
      'LIMIT', 0, 1)[2]
    band = math.floor(first / 1e13)
  end
  counts[band + 1] = counts[band + 1] + total
  if oldest[band + 1] == '' or tonumber(first) < tonumber(oldest[band + 1]) then oldest[band + 1] = first end
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
    local counts, oldest = { 0, 0, 0, 0, 0 }, { '', '', '', '', '' }
    for _, lane in ipairs(page[2]) do count_lane(lane, counts, oldest) end
    reply[#reply + 1] = q
    reply[#reply + 1] = redis.call('ZCARD', queue_leases_key(q))
    for band = 1, 5 do
      reply[#reply + 1] = counts[band]
      reply[#reply + 1] = oldest[band]
    end
    seen = seen + #page[2]
    if page[1] ~= '0' then
      reply[1], reply[2] = q, page[1]
      return reply
    end
  end
end
return reply
