-- Returns the generation that the index carries.
--
-- Returns  {number, state}: 'ready', 'rebuilding', or 'missing' (also when it is unreadable, or of another server run)
--
-- The leading scheduler asks twice a second. So the time is recorded here: should the clock step back, `now_us` goes on from it.
--! include keys
local generation = redis.pcall('HMGET', GENERATION, 'number', 'run_id', 'state', 'stamp')
if generation.err or not string.match(generation[1] or '', '^%d+$') or generation[2] ~= server_run() then
  return { '0', 'missing' }
end
local now = now_us()
if now > within(generation[4], now + FAR_US) then redis.pcall('HSET', GENERATION, 'stamp', whole(now)) end
return { generation[1], generation[3] }
