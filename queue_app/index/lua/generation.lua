-- Returns the generation that the index carries.
--
-- Returns  {number, state}: 'ready', 'rebuilding', or 'missing' (also when it is unreadable, or of another server run)
--! include keys
local generation = redis.pcall('HMGET', GENERATION, 'number', 'run_id', 'state')
if generation.err or not string.match(generation[1] or '', '^%d+$') or generation[2] ~= server_run() then
  return { '0', 'missing' }
end
return { generation[1], generation[3] }
