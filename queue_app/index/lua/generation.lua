-- Returns the generation that the index carries, and the identity of the database to which it belongs.
--
-- Returns  {number, state, owner}; state: 'ready', 'loading' (claims are allowed), 'rebuilding', or 'missing' (also when it is
--          unreadable, or of another server run); owner: '' while it belongs to no database
--
-- The leading scheduler asks every second. So the time is recorded here: should the clock step back, `now_us` continues from it.
--! include keys
local generation = redis.pcall('HMGET', GENERATION, 'number', 'run_id', 'state', 'stamp', 'database')
if generation.err then return { '0', 'missing', '' } end
local owner = generation[5] and is_identity(generation[5]) and generation[5] or ''
if not string.match(generation[1] or '', '^%d+$') or generation[2] ~= server_run() then
  return { '0', 'missing', owner }
end
local now = now_us()
if now > within(generation[4], now + FAR_US) then redis.pcall('HSET', GENERATION, 'stamp', whole(now)) end
return { generation[1], true_state(generation[3]), owner }
