-- Counts the waiting tasks in each lane of some queues, about 500 lanes per call.
--
-- ARGV[1]  cursor in the first queue ('0' at first)    ARGV[2..]  queues
-- Returns  {queues that are done, cursor in the next one, queue, {lane, count, ...}, queue, ...}; a queue may come in parts
--! include keys
--! include walk
local reply = {}
local done, cursor = walk(1, 500, function(q, cursor)
  local page, sizes = redis.call('SSCAN', lanes_key(q), cursor, 'COUNT', 500), {}
  for _, lane in ipairs(page[2]) do
    sizes[#sizes + 1] = lane
    sizes[#sizes + 1] = redis.call('ZCARD', lane_key(lane))
  end
  reply[#reply + 1] = q
  reply[#reply + 1] = sizes
  return page[1], #page[2] + 1
end)
return { done, cursor, unpack(reply) }
